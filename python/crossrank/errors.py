"""The exceptions of crossrank. Each also derives from the builtin exception of the same kind."""

from __future__ import annotations

import builtins
import errno
import os
import re
from typing import Any


class Error(RuntimeError):
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
    """The ranks that are to blame. The name is that of the C++ interface, so that messages and documents fit both."""
    group_usable: bool = True
    fields: dict[str, Any] = {}  # noqa: RUF012 (each instance gets its own)
    _report: str = ""

    def report(self) -> str:
        """Returns several lines for people: the finding, each rank concerned, what to do next.

        >>> print(error.report())
        """
        return self._report or str(self)

    def __reduce__(self) -> Any:  # an exception of multiprocessing or a logging queue travels as a pickle
        if not self.fields:
            return super().__reduce__()
        return from_native, (self.code, str(self), self._report, self.fields), self.__dict__


class UsageError(Error, ValueError):
    """The caller broke a precondition. Nothing was sent, and the group stays usable.

    >>> try:
    ...     world.all_reduce(values, op="minimum")
    ... except crossrank.UsageError as error:
    ...     print(error)  # names the ops that there are
    """

    code = "usage"


class MismatchError(Error, ValueError):
    """The ranks disagree about a call. All of them get this error.

    >>> try:
    ...     world.broadcast(weight)
    ... except crossrank.MismatchError as error:
    ...     print(error)  # names what each rank called
    """

    code = "mismatch"


class TimeoutError(Error, builtins.TimeoutError):
    """A living rank made no progress for the whole deadline. The group is dead unless `group_usable`.

    >>> try:
    ...     message = queue.dequeue_dict(timeout=10)
    ... except crossrank.TimeoutError as error:
    ...     print("waits for the ranks", error.failed_ranks)
    """

    code = "timeout"


class PeerLostError(Error, ConnectionError):
    """A rank died, left or aborted the group. The group is dead.

    >>> try:
    ...     world.barrier()
    ... except crossrank.PeerLostError as error:
    ...     print("lost the ranks", error.failed_ranks)
    """

    code = "peer_lost"


class RemoteError(Error):
    """A callable raised on another, living rank. The group stays usable.

    >>> try:
    ...     config = crossrank.compute_and_broadcast(world, read_config)
    ... except crossrank.RemoteError as error:
    ...     print(error)  # has the text of the exception
    """

    code = "remote"


class CancelledError(Error):
    """The caller cancelled the operation.

    >>> try:
    ...     message = queue.dequeue_bytes()
    ... except crossrank.CancelledError:
    ...     print("another thread called queue.cancel()")
    """

    code = "cancelled"


class IoError(Error, OSError):
    """A system call failed. `errno`, `strerror` and `filename` are those of the call.

    Also derives from the builtin exception of its `errno`: FileNotFoundError, FileExistsError, IsADirectoryError,
    NotADirectoryError or PermissionError.

    >>> try:
    ...     weights = crossrank.load("model/")
    ... except FileNotFoundError as error:
    ...     print(error.filename)
    """

    code = "io"

    def __str__(self) -> str:  # OSError would leave out what the core says
        return str(self.args[0]) if self.args else ""


class FormatError(Error, ValueError):
    """Bytes of a file or message are invalid.

    >>> try:
    ...     weights = crossrank.load("model/")
    ... except crossrank.FormatError as error:
    ...     print(error)  # names the file and what is wrong
    """

    code = "format"


class BackendError(Error):
    """A vendor library, such as MPI, failed.

    >>> try:
    ...     world = crossrank.connect(backend="mpi")
    ... except crossrank.BackendError as error:
    ...     print(error)  # has the text of MPI
    """

    code = "backend"


class UnavailableError(Error):
    """There is no backend, memory or support for the request.

    >>> try:
    ...     weight = workspace.empty((1 << 40,), "F32")
    ... except crossrank.UnavailableError as error:
    ...     print(error)  # says which rank holds how much memory
    """

    code = "unavailable"


_CLASSES: dict[str, type[Error]] = {kind.code: kind for kind in Error.__subclasses__()}


def _io_error(builtin: type[OSError]) -> type[IoError]:
    return type("IoError", (IoError, builtin), {"__doc__": IoError.__doc__, "__module__": __name__})


_IO_ERRORS: dict[int, type[IoError]] = {
    errno.ENOENT: _io_error(FileNotFoundError),
    errno.EEXIST: _io_error(FileExistsError),
    errno.EISDIR: _io_error(IsADirectoryError),
    errno.ENOTDIR: _io_error(NotADirectoryError),
    errno.EACCES: _io_error(PermissionError),
    errno.EPERM: _io_error(PermissionError),
}


def _in_python(text: str) -> str:
    """Writes the names of the C++ library as Python does."""
    return re.sub(r"\b(crossrank|GroupCoordinator)::", r"\1.", text)


def from_native(code: str, text: str, report: str, fields: dict[str, Any]) -> Error:
    """Returns the exception of an error of the C++ library."""
    text, report = _in_python(text), _in_python(report)
    number = fields.get("errno", 0)
    kind = _CLASSES.get(code, Error)
    error = (_IO_ERRORS.get(number, kind) if kind is IoError else kind)(text)
    error.operation = fields.get("operation", "")
    error.rank = fields.get("rank", -1)
    error.failed_ranks = tuple(fields.get("failed_ranks", ()))
    error.group_usable = fields.get("group_usable", True)
    error.fields = fields
    error._report = report
    if isinstance(error, IoError):
        error.errno = number or None
        error.strerror = os.strerror(number) if number else None
        error.filename = fields.get("resource")
    return error
