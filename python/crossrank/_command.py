"""The `crossrank` command on PATH: hands over to the program in the package."""

import os
import sys


def main() -> None:
    """Runs the program with the same arguments, in this process."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "crossrank")
    os.execv(program, ["crossrank", *sys.argv[1:]])
