#!/bin/bash
# Checks that the library names its own options in what it says, never the flags of a command: a program that calls it
# has no such flags. The command puts its flags in their place (tools/cli/option_flags.cpp). Usage: options.sh SOURCE_TREE
set -euo pipefail
cd "$1"
# Other programs' flags may be named together with the program.
if grep -rnE --include='*.hpp' --include='*.cpp' '^[^/]*"([^"]*[^"a-z-])?--[a-z]' lib collectives workspace include |
  grep -vE '(docker|srun|mpirun|distribution=block|Megatron)'; then
  echo "these lines advise a flag: name the option of the library, in backquotes"
  exit 1
fi
