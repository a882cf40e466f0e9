"""Operations of a process group: in the caller's thread where it waits anyway, else in a thread of the group."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Work
from torch.futures import Future

__all__ = ["OperationWork", "Operations"]

# A started operation: its requests, and a function that fills the results once all requests have completed.
Started = tuple[list[Any], Callable[[], list[Any]]]


def _value_or_raise(future: Future) -> Any:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


class OperationWork(Work):
    """The handle that torch returns for an operation. `wait` raises the library's own error."""

    def __init__(self, source: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._source = source
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._outcome: Future = Future()
        # Torch's C++ code sees an error only in a future whose callback raised.
        self._future: Future | None = None
        self._lock = threading.Lock()
        self._result: list[Any] = []

    def finish(self, result: list[Any], error: BaseException | None = None) -> None:
        """Completes the operation, with its result or with an error."""
        with self._lock:
            self._result, self._error = result, error
            self._done.set()
            future = self._future
        if future is not None:
            self._outcome.set_result(result if error is None else error)

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until the operation has completed, and raises its error."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise TimeoutError(f"the operation has not completed within {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Returns whether the operation has completed or failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Returns whether the operation has completed without an error."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Returns the error of an operation that failed."""
        return self._error

    def result(self) -> list[Any]:
        """Returns the tensors of the operation after it has completed."""
        return self._result

    def _source_rank(self) -> int:
        """Returns the sender of a message that was received from any rank. Torch asks for it after `wait`."""
        if self._source is None:
            raise RuntimeError("only a receive from any source has a source rank")
        return self._source()

    def get_future(self) -> Future:
        """Returns a future with the tensors of the operation. It carries the error of an operation that failed."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = self._outcome.then(_value_or_raise)
            done = self._done.is_set()
        if done:
            self._outcome.set_result(self._result if self._error is None else self._error)
        return self._future


class Operations:
    """Runs the operations of one group in the order in which they are submitted.

    The group is used by one thread at a time. An operation that its caller waits for runs in the caller's thread unless
    others are still in progress. All others are started by a thread of the group, which also completes them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._submitted: deque[tuple[Callable[[], Started], OperationWork]] = deque()
        self._in_progress = 0
        self._inline = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def run(
        self, start: Callable[[], Started], waits: bool, source: Callable[[], int] | None = None
    ) -> OperationWork:
        """Runs an operation. `waits`: the caller waits for it at once. `source` returns the sender of its message."""
        work = OperationWork(source)
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the process group {self._name} has been destroyed")
            inline = waits and not self._submitted and not self._in_progress and not self._inline
            if inline:
                self._inline = True
            else:
                self._submitted.append((start, work))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._complete, name=f"crossrank-{self._name}", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if inline:
            try:
                requests, finish = start()
                for request in requests:
                    request.wait()
                work.finish(finish())
            finally:
                with self._changed:
                    self._inline = False
                    self._changed.notify_all()
        return work

    def wait_until_idle(self) -> None:
        """Blocks until no operation is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._submitted and not self._in_progress and not self._inline)

    def close(self) -> None:
        """Completes what is in progress and ends the thread. Later operations are an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _next(self, block: bool) -> list[tuple[Callable[[], Started], OperationWork]]:
        with self._changed:
            if block:
                self._changed.wait_for(lambda: (self._submitted and not self._inline) or (self._closed and not self._submitted))
            if self._inline:
                return []
            taken = list(self._submitted)
            self._submitted.clear()
            self._in_progress += len(taken)
            return taken

    def _complete(self) -> None:
        """The group's thread: starts operations in order, completes them in any order."""
        running: list[tuple[list[Any], Callable[[], list[Any]], OperationWork]] = []
        while True:
            taken = self._next(block=not running)
            if not running and not taken:
                return
            for start, work in taken:
                try:
                    requests, finish = start()
                    running.append((requests, finish, work))
                except BaseException as error:
                    self._end(work, [], error)
            running = [operation for operation in running if not self._advance(*operation)]
            if running and (error := self._wait_a_little(running[0][0])) is not None:
                self._end(running.pop(0)[2], [], error)

    def _advance(self, requests: list[Any], finish: Callable[[], list[Any]], work: OperationWork) -> bool:
        """Returns whether the operation has ended."""
        try:
            if not all(request.test() for request in requests):
                return False
            self._end(work, finish())
        except BaseException as error:
            self._end(work, [], error)
        return True

    def _wait_a_little(self, requests: list[Any]) -> BaseException | None:
        """Waits for the oldest operation, but not so long that a new one would have to wait.

        Returns its error if it fails meanwhile: a request raises its error only once.
        """
        try:
            for request in requests:
                if not request.test():
                    request.wait(timeout=0.0005)
                    break
        except BaseException as error:
            return error
        return None

    def _end(self, work: OperationWork, result: list[Any], error: BaseException | None = None) -> None:
        with self._changed:
            self._in_progress -= 1
            self._changed.notify_all()
        work.finish(result, error)
