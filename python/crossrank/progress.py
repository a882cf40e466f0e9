"""The progress of jobs: bars of tqdm, lines, or a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

# Gets the finished bytes, all bytes, and the name of the stage.
OnProgress = Callable[[int, int, str], None]


class Display:
    """Shows the progress of one job in a `with` block. `report` is what the core calls, or None.

    With `True` it shows bars of tqdm where that is installed, and else lines on standard error.
    """

    def __init__(self, progress: bool | OnProgress | None) -> None:
        self._shown: _Bar | _Lines | None = None
        self.report: OnProgress | None = None
        if progress is True:
            self._shown = self.report = _bar_or_lines()
        elif progress:
            self.report = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar."""
        if self._shown is not None:
            self._shown.close()


def _bar_or_lines() -> _Bar | _Lines:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines()
    return _Bar(tqdm)


class _Bar:
    """A bar of tqdm for each stage."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._stage = ""
        self._bar: Any = None

    def __call__(self, done: int, total: int, stage: str) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = self._tqdm(total=total, desc=stage, unit="B", unit_scale=True)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Lines:
    """A line at the begin of each stage, and after each tenth of it."""

    def __init__(self) -> None:
        self._stage = ""
        self._tenths = -1

    def __call__(self, done: int, total: int, stage: str) -> None:
        tenths = 10 * done // total if total else 10
        if stage != self._stage:
            self._stage, self._tenths = stage, -1
        if tenths > self._tenths:
            self._tenths = tenths
            print(f"{stage}: {10 * tenths} % of {total / 1e9:.2f} GB", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass
