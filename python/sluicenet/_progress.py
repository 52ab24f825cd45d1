"""How far a run is, in a notebook, in a terminal, or not at all."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

_DELAY_S = 0.5
"""Short runs show nothing."""
_PLAIN_INTERVAL_S = 0.5
"""How often a line is written where there is no tqdm."""
_FORMAT = "{desc} {percentage:3.0f}%|{bar}|{postfix} [{elapsed}<{remaining}]"


def wanted(progress: bool | None) -> bool:
    """Whether to show progress: as told, or else where somebody looks, a terminal or a notebook."""
    if progress is not None:
        return progress
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def fraction(now_ps: int, until_ps: int | None, remaining: int, total: int) -> float:
    """How much is done: of the time where that has an end, of the work otherwise."""
    if until_ps:
        return min(1.0, now_ps / until_ps)
    return 1.0 - remaining / total if total else 0.0


class Bar:
    """A bar: tqdm's where that is installed, a plain line otherwise."""

    def __init__(self, title: str, progress: bool | None) -> None:
        """Shows nothing before half a second has passed."""
        self._title = title
        self._bar: Any = None
        self._start = self._last = time.monotonic()
        self._note = ""
        self._is_plain = False
        self._has_line = False
        if wanted(progress):
            self._bar = _tqdm(title)
            self._is_plain = self._bar is None
        self.visible = self._bar is not None or self._is_plain

    def __enter__(self) -> Bar:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the last state on the screen."""
        if self._bar is not None:
            self._bar.close()
        elif self._has_line:
            print(file=sys.stderr)

    def tick(self, now_ps: int, until_ps: int | None, remaining: int, total: int, hops: int) -> None:
        """Shows how far one run is."""
        elapsed_s = max(1e-3, time.monotonic() - self._start)
        note = f"{now_ps / 1e9:,.3f} ms simulated, {hops / elapsed_s / 1e6:.2f} M hops/s"
        self.set(fraction(now_ps, until_ps, remaining, total), note)

    def finish(self) -> None:
        """Shows that all is done: the last epoch ends a little after the last tick."""
        if self._bar is not None:
            self._bar.n = self._bar.total
        elif self._has_line:
            self._print(1.0)

    def set(self, done: float, note: str) -> None:
        """Shows a share from 0 to 1, and a note."""
        self._note = note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._is_plain:
            now = time.monotonic()
            if now - self._start >= _DELAY_S and now - self._last >= _PLAIN_INTERVAL_S:
                self._last = now
                self._has_line = True
                self._print(done)

    def _print(self, done: float) -> None:
        elapsed_s = time.monotonic() - self._start
        # An estimate from the first moments would be wild.
        left = f", {elapsed_s * (1 - done) / done:.0f} s left" if 0.01 < done < 1 else ""
        print(f"\r{self._title} {100 * done:3.0f} %, {self._note}{left}   ", end="", file=sys.stderr, flush=True)


def _tqdm(title: str) -> Any:  # noqa: ANN401 - tqdm may be absent
    try:
        # Without ipywidgets tqdm draws its bar in text, and need not say so.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=1.0, desc=title, delay=_DELAY_S, bar_format=_FORMAT, leave=True)
