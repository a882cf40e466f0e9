"""The exceptions of crossrank. Each also derives from the builtin exception of the same kind."""

from __future__ import annotations

import builtins
from typing import Any


class Error(Exception):
    """The base class of all errors of crossrank.

    >>> try:
    ...     world.barrier()
    ... except crossrank.Error as error:
    ...     print(error.report())
    """

    code: str = ""
    operation: str = ""
    rank: int = -1
    failed_ranks: tuple[int, ...] = ()
    group_usable: bool = True
    fields: dict[str, Any] = {}  # noqa: RUF012 (each instance gets its own)
    _report: str = ""

    def report(self) -> str:
        """Returns several lines for people: the finding, each rank concerned, what to do next."""
        return self._report or str(self)


class UsageError(Error, ValueError):
    """The caller broke a precondition. Nothing was sent, and the group stays usable."""


class MismatchError(Error, ValueError):
    """The ranks disagree about a call. All of them get this error."""


class TimeoutError(Error, builtins.TimeoutError):
    """A living rank made no progress for the whole deadline. The group is dead unless `group_usable`."""


class PeerLostError(Error, ConnectionError):
    """A rank died, left or aborted the group. The group is dead."""


class RemoteError(Error, RuntimeError):
    """A callable raised on another, living rank. The group stays usable."""


class CancelledError(Error):
    """The caller cancelled the operation."""


class IoError(Error, OSError):
    """A system call failed. `errno` is that of the call."""


class FormatError(Error, ValueError):
    """Bytes of a file or message are invalid."""


class BackendError(Error, RuntimeError):
    """A vendor library, such as MPI, failed."""


class UnavailableError(Error, RuntimeError):
    """There is no backend, memory or support for the request."""


_CLASSES: dict[str, type[Error]] = {
    "usage": UsageError,
    "mismatch": MismatchError,
    "timeout": TimeoutError,
    "peer_lost": PeerLostError,
    "remote": RemoteError,
    "cancelled": CancelledError,
    "io": IoError,
    "format": FormatError,
    "backend": BackendError,
    "unavailable": UnavailableError,
}


def from_native(code: str, text: str, report: str, fields: dict[str, Any]) -> Error:
    """Returns the exception of an error of the C++ library."""
    error = _CLASSES.get(code, Error)(text)
    error.code = code
    error.operation = fields.get("operation", "")
    error.rank = fields.get("rank", -1)
    error.failed_ranks = tuple(fields.get("failed_ranks", ()))
    error.group_usable = fields.get("group_usable", True)
    error.fields = fields
    error._report = report
    if isinstance(error, IoError):
        error.errno = fields.get("system_errno") or fields.get("errno") or None
    return error
