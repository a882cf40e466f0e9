"""`monitored_barrier` of the backend "crossrank"."""

from __future__ import annotations

import struct
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import crossrank

__all__ = ["MonitoredBarrier"]

_ROUND = struct.Struct("<Q")
# A receive needs the length of its message.
_VERDICT_BYTES = 4096
_LONGEST_PAUSE = 0.005


class _Receive:
    """A message of another rank that is awaited."""

    def __init__(self, group: crossrank.Collective, src: int, size: int) -> None:
        self.message = bytearray(size)
        self.request = group.irecv(self.message, src=src)

    def arrived(self) -> bool:
        """Returns whether the message is there. Raises `PeerLostError` once its sender has died."""
        return self.request.test()

    @property
    def round(self) -> int:
        """The number of the round to which the message belongs."""
        return _ROUND.unpack_from(self.message)[0]

    @property
    def text(self) -> str:
        """What follows the number."""
        return bytes(self.message[_ROUND.size :]).rstrip(b"\0").decode(errors="replace")


class MonitoredBarrier:
    """The monitored barriers of a process group, on a group of the same ranks that carries no other messages.

    Each rank tells rank 0 that it has come, and rank 0 answers with the names of the ranks that are late. Messages have the
    number of their round, because those of a rank that was late arrive in a later round, which drops them.
    """

    def __init__(self, group: crossrank.Collective) -> None:
        self._group = group
        self._round = 0
        self._sends: list[Any] = []

    def wait(self, limit: timedelta, wait_all_ranks: bool) -> None:
        """Blocks until all ranks have called it. Raises `RuntimeError` with the ranks that are late after `limit`."""
        self._round += 1
        self._sends = [send for send in self._sends if not send.test()]
        if self._group.rank == 0:
            verdict = self._verdict(limit, wait_all_ranks)
            for rank in range(1, self._group.world_size):
                self._send(rank, verdict.encode()[: _VERDICT_BYTES - _ROUND.size].ljust(_VERDICT_BYTES - _ROUND.size, b"\0"))
            if verdict:
                raise RuntimeError(verdict)
        else:
            self._send(0, b"")
            # Rank 0 itself waits up to the limit for a rank that is late.
            self._take_verdict(monotonic() + 2 * limit.total_seconds() + 1)

    def _send(self, dst: int, text: bytes) -> None:
        self._sends.append(self._group.isend(_ROUND.pack(self._round) + text, dst=dst))

    def _receive_all(self, sources: list[int], size: int, end: float) -> dict[int, _Receive]:
        """Returns the messages of this round by rank, those that have arrived at the time `end`."""
        waiting = {rank: _Receive(self._group, rank, size) for rank in sources}
        found: dict[int, _Receive] = {}
        pause = 0.0001
        try:
            while True:
                for rank, receive in list(waiting.items()):
                    if not receive.arrived():
                        continue
                    if receive.round == self._round:
                        found[rank] = waiting.pop(rank)
                    else:
                        waiting[rank] = _Receive(self._group, rank, size)
                left = end - monotonic()
                if not waiting or left <= 0:
                    return found
                sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            for receive in waiting.values():
                receive.request.cancel()

    def _verdict(self, limit: timedelta, wait_all_ranks: bool) -> str:
        """Waits for the other ranks and returns which are late, or an empty text."""
        if limit <= timedelta():
            return f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {limit.total_seconds():g} s"
        others = list(range(1, self._group.world_size))
        came = self._receive_all(others, _ROUND.size, monotonic() + limit.total_seconds())
        late = [rank for rank in others if rank not in came]
        if not late:
            return ""
        who = f"Ranks {', '.join(map(str, late))}" if wait_all_ranks else f"Rank {late[0]}"
        return f"[Rank 0]: {who} failed to pass monitoredBarrier in {limit.total_seconds():g} s"

    def _take_verdict(self, end: float) -> None:
        rank = self._group.rank
        came = f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received errors while "
        came += "waiting for send/recv from rank 0"
        answers = self._receive_all([0], _VERDICT_BYTES, end)
        verdict = answers[0].text if answers else "rank 0 has not come"
        if verdict:
            raise RuntimeError(f"{came}: {verdict}")
