"""Operations of a process group: in the caller's thread where it waits anyway, else in a thread of the group."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work
from torch.futures import Future

from crossrank.errors import CancelledError, Error, TimeoutError, UsageError

from .dynamo import not_compiled

__all__ = ["OperationWork", "Operations"]

# A started operation: its requests, and a function that fills the results once all requests have completed.
Started = tuple[list[Any], Callable[[], list[Any]]]
# How long, in seconds, an operation in the caller's thread keeps those of other threads waiting.
_INLINE_SLICE = 0.01
# How long, in seconds, an operation in the group's thread keeps new ones waiting.
_THREAD_SLICE = 0.0005
# The longest pause, in seconds, of the group's thread between two polls of operations for which nobody waits yet.
_LONGEST_PAUSE = 0.01
# A pause takes at most this part of the time in which nothing has ended, so that an end is noticed only a little late.
_PAUSE_PART = 16
# How long, in seconds, the end of the process waits for the group's thread and for callbacks.
_LONGEST_LEAVE = 5.0
# How many operations for which nobody has waited a group keeps alive after their handles are gone, and the longest result, in
# bytes, that each of them keeps: a flag that DistributedDataParallel reads under `join`, but no weights.
_MOST_KEPT = 16
_LONGEST_KEPT_RESULT = 4096


def _limited(start: Callable[[], Started], limit: timedelta) -> Callable[[], Started]:
    """Returns the start of an operation that has a timeout of its own."""

    def start_limited() -> Started:
        requests, finish = start()
        for request in requests:
            request.set_timeout(limit)
        return requests, finish

    return start_limited


def _if_short(result: list[Any]) -> list[Any]:
    """Returns a result of tensors, or of lists of tensors, unless it is long."""
    tensors = [tensor for item in result for tensor in (item if isinstance(item, list) else [item])]
    return result if sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= _LONGEST_KEPT_RESULT else []


def _value_or_raise(future: Future) -> Any:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


@not_compiled
class OperationWork(Work):
    """The handle that torch returns for an operation. `wait` raises the library's own error."""

    def __init__(self, operations: Operations, source: Callable[[], int] | None = None, is_receive: bool = False) -> None:
        super().__init__()
        self._operations = operations
        self._source = source
        self.is_receive = is_receive
        self.is_awaited = False
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._outcome: Future = Future()
        # Torch's C++ code sees an error only in a future whose callback raised.
        self._future: Future | None = None
        self._lock = threading.Lock()
        self._result: list[Any] = []
        self._has_waiter = False
        self._is_dropped = False

    def __del__(self) -> None:
        # Torch's C++ code may keep its half of the handle, then wait and read the result, as DistributedDataParallel does under
        # `join`. Without this half, that wait would never end.
        if not self._has_waiter:
            with self._lock:
                self._is_dropped, self._result = True, _if_short(self._result)
            self._operations.keep(self)

    def finish(self, result: list[Any], error: BaseException | None = None) -> None:
        """Completes the operation, with its result or with an error."""
        with self._lock:
            self._result, self._error = _if_short(result) if self._is_dropped else result, error
            self._done.set()
            future = self._future
        if future is None:
            return
        # A callback may start another operation and wait for it, which needs the group's thread meanwhile.
        outcome = result if error is None else error
        if self._operations.is_leaving:  # a new thread might still run when Python ends
            self._outcome.set_result(outcome)
            return
        if not _start_callbacks(self._outcome, outcome):
            self._outcome.set_result(outcome)

    def wait(self, timeout: Any = None) -> bool:
        """Blocks until the operation has completed, and raises its error. An exception of a signal handler, such as
        KeyboardInterrupt, ends the wait and aborts the group.
        """
        seconds = timeout.total_seconds() if timeout else 0
        self._has_waiter = True
        if not self._done.is_set():
            self._operations.require_own_process()
        self._expect()
        try:
            completed = self._done.wait(seconds if seconds > 0 else None)
        except BaseException:
            self._operations.interrupt()
            raise
        if not completed:
            raise TimeoutError(f"the operation has not completed within {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def _expect(self) -> None:
        """Lets the group's thread notice the end at once, because the program waits for it."""
        if not self.is_awaited and not self._done.is_set():
            self.is_awaited = True
            self._operations.wake()

    def is_completed(self) -> bool:
        """Returns whether the operation has completed or failed."""
        if not self.is_receive:
            self._expect()
        done = self._done.is_set()
        self._has_waiter = self._has_waiter or done
        return done

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
        """Returns the sender of a message that was received. Torch asks for it after `wait`."""
        if self._source is None:
            raise RuntimeError("only a receive has a source rank")
        return self._source()

    def get_future(self) -> Future:
        """Returns a future with the tensors of the operation. It carries the error of an operation that failed."""
        self._has_waiter = True
        if not self.is_receive:
            self._expect()
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = self._outcome.then(_value_or_raise)
            done = self._done.is_set()
        if done:
            self._outcome.set_result(self._result if self._error is None else self._error)
        return self._future


# A started operation in progress.
Running = tuple[list[Any], Callable[[], list[Any]], OperationWork]


class Operations:
    """Runs the operations of one group in the order in which they are submitted.

    The group is used by one thread at a time. An operation that its caller waits for runs in the caller's thread unless
    others are still in progress. All others are started by a thread of the group, which also completes them. It takes over
    an operation of a caller's thread when another one is submitted meanwhile. `abort` ends the operations of all ranks, for
    the reason that it gets.
    """

    def __init__(self, name: str, abort: Callable[[str], None] | None = None) -> None:
        self._name = name
        self._abort = abort
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._submitted: deque[tuple[Callable[[], Started], OperationWork]] = deque()
        # Operations that a caller's thread has started and the group's thread completes.
        self._handed_over: list[Running] = []
        self._in_progress = 0
        self._inline = False
        self._inline_thread: int | None = None
        self._closed = False
        self._leaving = False
        self._thread: threading.Thread | None = None
        self._kept: deque[OperationWork] = deque(maxlen=_MOST_KEPT)
        _all.add(self)

    def require_own_process(self) -> None:
        """Raises in a forked child, which has no copy of the group's thread."""
        if os.getpid() == self._pid:
            return
        raise UsageError(
            f"torch.distributed: a forked child is not a rank: expected a call from pid {self._pid}, got pid "
            f"{os.getpid()} (hint: call from the parent, or start the child with the method spawn)"
        )

    def keep(self, work: OperationWork) -> None:
        """Keeps the last handles that the program has dropped without a wait. Torch may still ask for their results."""
        if not (self._closed or self._leaving):
            self._kept.append(work)

    @property
    def is_leaving(self) -> bool:
        """Whether the process exits."""
        return self._leaving

    def wake(self) -> None:
        """Ends a pause of the group's thread."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._changed.notify_all()

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._name

    def interrupt(self, reason: str = "a signal interrupted the Python program") -> None:
        """Ends the operations of all ranks with an error."""
        abort = self._abort
        if abort is not None:
            with suppress(Error):  # the group may be dead already
                abort(reason)

    def run(
        self,
        start: Callable[[], Started],
        waits: bool,
        source: Callable[[], int] | None = None,
        is_receive: bool = False,
        limit: timedelta | None = None,
    ) -> OperationWork:
        """Runs an operation. `waits`: the caller waits for it at once. `source` returns the sender of its message.

        `limit` replaces the timeout of the group.
        """
        self.require_own_process()
        work = OperationWork(self, source, is_receive)
        if limit is not None:
            start = _limited(start, limit)
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the process group {self._name} has been destroyed")
            inline = waits and not self._submitted and not self._in_progress and not self._inline
            if inline:
                self._inline = True
                self._inline_thread = threading.get_ident()
            elif self._inline_thread == threading.get_ident():
                raise UsageError(
                    f"the process group {self._name}: a signal handler calls an operation while it interrupts another one "
                    "(hint: let the handler set a flag, and call the operation from the program's loop)"
                )
            elif self._leaving:
                raise RuntimeError(
                    f"the process group {self._name} starts no asynchronous operation while the process exits (hint: wait for "
                    "operations before the end of the program, and call only blocking ones in functions of atexit)"
                )
            else:
                if self._thread is None:
                    thread = threading.Thread(target=self._complete, name=f"crossrank-{self._name}", daemon=True)
                    thread.start()  # it may raise, and nothing is submitted then
                    self._thread = thread
                self._submitted.append((start, work))
                self._changed.notify_all()
        if inline and not self._run_inline(start, work):
            work.wait()
        return work

    def _run_inline(self, start: Callable[[], Started], work: OperationWork) -> bool:
        """Runs an operation in the caller's thread. Returns False if the group's thread has taken it over."""
        handed_over: list[Running] = []
        try:
            requests, finish = start()
            if not self._wait_inline(requests):
                handed_over.append((requests, finish, work))
                return False
            work.finish(finish())
            return True
        finally:
            with self._changed:
                self._handed_over += handed_over
                self._in_progress += len(handed_over)
                self._inline = False
                self._inline_thread = None
                self._changed.notify_all()

    def _wait_inline(self, requests: list[Any]) -> bool:
        """Waits for the requests. Returns False when another operation has been submitted meanwhile."""
        try:
            for request in requests:
                while not request.wait(timeout=_INLINE_SLICE):
                    # The peer of the other operation may come to this one only after it.
                    if self._submitted:
                        return False
            return True
        except Error:
            raise
        except BaseException:  # a signal handler raised, perhaps between two slices
            self.interrupt()
            raise

    def close(self) -> None:
        """Completes what is in progress and ends the thread. Later operations are an error.

        A receive whose message has not come is cancelled: nothing says that it ever comes.
        """
        self.require_own_process()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._kept.clear()
        self._abort = None

    def leave(self, until: float) -> None:
        """Ends the thread of a process that exits, and waits for it until then at most.

        Operations that have not completed fail. Later ones must block. At its end Python stops a thread in the middle of a
        call. Torch does not survive that: it ends the process by SIGABRT.
        """
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._leaving = True
            self._kept.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            _join(thread, until - _LONGEST_LEAVE / 2)
        if thread is not None and thread.is_alive():  # it blocks in an operation
            self.interrupt("the process exits during an operation")
            _join(thread, until)

    def _next(self, running: list[Running]) -> list[tuple[Callable[[], Started], OperationWork]]:
        """Returns the operations to start, and adds those to `running` that are handed over. Blocks if none is running."""
        with self._changed:
            if not running:
                self._changed.wait_for(
                    lambda: self._leaving or (self._submitted and not self._inline) or (self._closed and not self._submitted)
                )
            if self._inline or self._leaving:
                return []
            running += self._handed_over
            self._handed_over.clear()
            taken = list(self._submitted)
            self._submitted.clear()
            self._in_progress += len(taken)
            return taken

    def _complete(self) -> None:
        """The group's thread: starts operations in order, completes them in any order."""
        running: list[Running] = []
        moved_at = time.monotonic()
        while True:
            taken = self._next(running)
            if not running and not taken:
                if self._leaving:
                    self._abandon(running)
                return
            in_progress = len(running)
            running += self._start(taken)
            running = [operation for operation in running if self._leaving or not self._advance(*operation)]
            if taken or len(running) < in_progress:
                moved_at = time.monotonic()
            taken.clear()  # the operations hold tensors
            if self._leaving:
                self._abandon(running)
                return
            if self._closed:
                running = [operation for operation in running if not self._cancel_receive(*operation)]
            if running:
                self._wait_a_little(running, time.monotonic() - moved_at)

    def _start(self, taken: list[tuple[Callable[[], Started], OperationWork]]) -> list[Running]:
        """Starts operations, and returns those that have not failed at once."""
        started: list[Running] = []
        for start, work in taken:
            if self._leaving:
                self._end(work, [], self._cancelled())
                continue
            try:
                started.append((*start(), work))
            except BaseException as error:
                self._end(work, [], error)
        return started

    def _advance(self, requests: list[Any], finish: Callable[[], list[Any]], work: OperationWork) -> bool:
        """Returns whether the operation has ended."""
        try:
            if not all(request.test() for request in requests):
                return False
            self._end(work, finish())
        except BaseException as error:
            self._end(work, [], error)
        return True

    def _cancel_receive(self, requests: list[Any], _finish: Callable[[], list[Any]], work: OperationWork) -> bool:
        """Cancels the operation if it is a receive, and returns whether it was one."""
        if not work.is_receive:
            return False
        error: BaseException = self._cancelled()
        for request in requests:
            try:
                request.cancel()
            except BaseException as failure:
                error = failure
        self._end(work, [], error)
        return True

    def _cancelled(self) -> CancelledError:
        if self._leaving:
            return CancelledError(f"the process exits during an operation of the process group {self._name}")
        return CancelledError(f"the process group {self._name} has been destroyed during the receive")

    def _abandon(self, running: list[Running]) -> None:
        """Fails all operations of a process that exits, because a function of atexit may wait for them."""
        with self._changed:
            left = [*running, *self._handed_over]
            unstarted = [work for _, work in self._submitted]
            self._handed_over.clear()
            self._submitted.clear()
            self._in_progress += len(unstarted)
        for operation in left:
            if not self._cancel_receive(*operation):
                self._end(operation[2], [], self._cancelled())
        for work in unstarted:
            self._end(work, [], self._cancelled())

    def _wait_a_little(self, running: list[Running], idle: float) -> None:
        """Waits for the oldest operation, but not so long that a new one would have to wait.

        Ends it if it fails meanwhile: a request raises its error only once. These waits use up the group's timeout, which a
        receive has only from the call of its `wait`. While nobody waits for an operation, the thread also sleeps, to leave the
        processor to the program. The sleep grows with `idle`, the seconds in which nothing has ended.
        """
        oldest = next((one for one in running if not one[2].is_receive or one[2].is_awaited), None)
        pause = min(idle / _PAUSE_PART, _LONGEST_PAUSE)
        if oldest is None or pause > _THREAD_SLICE:
            self._pause(running, max(pause, _THREAD_SLICE))
            if self._submitted or oldest is None:
                return
        try:
            for request in oldest[0]:
                if not request.test():
                    request.wait(timeout=_THREAD_SLICE)
                    break
        except BaseException as error:
            running.remove(oldest)
            self._end(oldest[2], [], error)

    def _pause(self, running: list[Running], seconds: float) -> None:
        """Sleeps until an operation is submitted or waited for, at most for `seconds`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._submitted or self._closed or self._leaving or any(work.is_awaited for _, _, work in running),
                timeout=seconds,
            )

    def _end(self, work: OperationWork, result: list[Any], error: BaseException | None = None) -> None:
        with self._changed:
            self._in_progress -= 1
            self._changed.notify_all()
        work.finish(result, error)


_all: weakref.WeakSet[Operations] = weakref.WeakSet()
# The threads that run callbacks of futures. They may outlive their group, so the end of the process waits for them.
_callback_threads: set[threading.Thread] = set()


def _start_callbacks(future: Future, outcome: Any) -> bool:
    """Completes a future in a thread of its own. Returns false if there can be no more threads."""

    def run() -> None:
        try:
            future.set_result(outcome)
        finally:
            _callback_threads.discard(threading.current_thread())

    thread = threading.Thread(target=run, name="crossrank-callbacks", daemon=True)
    _callback_threads.add(thread)
    try:
        thread.start()
    except RuntimeError:
        _callback_threads.discard(thread)
        return False
    return True


def _join(thread: threading.Thread, until: float) -> None:
    """Waits for the end of a thread until then at most. A thread does not wait for itself."""
    if thread is not threading.current_thread():
        thread.join(timeout=max(0.0, until - time.monotonic()))


@atexit.register
def _leave_all() -> None:
    until = time.monotonic() + _LONGEST_LEAVE
    for operations in list(_all):
        operations.leave(until)
    for thread in list(_callback_threads):
        _join(thread, until)
