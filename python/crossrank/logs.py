"""The library's events in Python's logging, under the name "crossrank"."""

from __future__ import annotations

import os
import sys

from . import _core


def start() -> None:
    """Sends the library's events to logging, unless `CROSSRANK_LOG` asks for lines on standard error."""
    if "CROSSRANK_LOG" not in os.environ:
        _core.log_to_python()


def emit(level: str, message: str, fields: dict[str, str]) -> None:
    """Logs one event. The core calls it, in a thread of its own. `record.fields` holds the named values.

    In a program that has not set up logging, a warning becomes a line on standard error that names the library.
    """
    import logging  # when the first event comes: most programs have none

    text = message
    if fields:
        text += f" ({', '.join(f'{key} {value}' for key, value in fields.items())})"
    number = getattr(logging, level.upper())
    logger = logging.getLogger("crossrank")
    if logger.hasHandlers():
        logger.log(number, "%s", text, extra={"fields": fields})
    elif number >= logging.WARNING:
        print(f"crossrank: {level}: {text}", file=sys.stderr, flush=True)
