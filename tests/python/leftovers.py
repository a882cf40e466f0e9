"""Finds what a job has left on its host."""

from __future__ import annotations

import os
import time

_FOLDER = "/dev/shm"


def names() -> set[str]:
    """Returns the names of crossrank in shared memory."""
    return {name for name in os.listdir(_FOLDER) if "crossrank" in name}


def names_left_since(before: set[str], limit: float = 20.0) -> set[str]:
    """Returns the names that are new and stay. Other tests may have names for a moment."""
    left, until = names() - before, time.monotonic() + limit
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left &= names()
    return left
