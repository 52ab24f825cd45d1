"""Results on disk."""

from __future__ import annotations

import html
import json
import os
import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from . import _native
from ._table import PartsTable, Table, read_json


class Summary(TypedDict):
    """A result in a few numbers, named as ``sluicenet run --json`` names them; times in microseconds.

    ``finished``, ``unfinished`` and the times are those of queries (an incast's rounds) where there are any, of flows
    otherwise: ``of`` says which. They leave the warm-up out, and times are None where nothing finished. ``timeouts``
    and ``retransmissions`` are those of all messages, and what follows counts the whole run. From ``flow_control`` on,
    a run that was killed has None; ``mean_round_us`` and ``bound_us`` (a round at line rate) are of an incast.
    """

    scenario: str
    seed: int
    status: str
    of: str
    finished: int
    unfinished: int
    mean_us: float | None
    min_us: float | None
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None
    p999_us: float | None
    max_us: float | None
    timeouts: int
    retransmissions: int
    drops: int
    losses_virtual: int
    losses_physical: int
    pauses: int
    drops_by_reason: dict[str, int]
    flow_control: str | None
    mean_round_us: float | None
    bound_us: float | None
    simulated_us: float | None
    packet_hops: int | None
    lossless_violations: int | None


class Scratch:
    """A directory that is gone when this is."""

    def __init__(self) -> None:
        """A new one, where the system keeps such things."""
        self.path = Path(tempfile.mkdtemp(prefix="sluicenet-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Result:
    """What a run recorded: tables, a manifest, and what they come to.

    Attributes:
        path: The directory; a temporary one, where the run was given none, lasts as long as the result and its tables.
    """

    def __init__(self, path: str | os.PathLike[str], keep: object = None) -> None:
        """Opens the result in a directory; see `load`."""
        self.path = Path(path)
        self._keep = keep
        self._manifest = read_json(self.path / "manifest.json")
        _native.check_format(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run, with which version, seed and inputs; the same on every machine."""
        return self._manifest

    @property
    def status(self) -> str:
        """``complete``, ``interrupted at ... ps``, ``failed: ...``, or ``running``, which a killed run leaves too."""
        return str(self._manifest["status"])

    @property
    def log(self) -> dict[str, Any] | None:
        """How this machine ran it: seconds, memory, threads; None where the run did not end."""
        path = self.path / "run.json"
        return read_json(path) if path.exists() else None

    @cached_property
    def summary(self) -> Summary:
        """The result in a few numbers; `Summary` has their names."""
        found: Summary = json.loads(_native.summary(self.path))
        return found

    @cached_property
    def flows(self) -> Table:
        """Messages from one socket to another."""
        return self._table("flows")

    @cached_property
    def queries(self) -> Table:
        """Queries, or rounds of an incast: one asks, all answer."""
        return self._table("queries")

    @cached_property
    def ports(self) -> Table:
        """Ports over the whole run: bytes, drops, pauses, longest queue."""
        return self._table("ports")

    @cached_property
    def drops(self) -> Table:
        """Frames thrown away, by place and reason."""
        return self._table("drops")

    @cached_property
    def pauses(self) -> Table:
        """PFC pauses, each with the one that caused it."""
        return self._table("pauses")

    @cached_property
    def queues(self) -> Table:
        """Samples of queues, where the scenario asks for them."""
        return self._table("queues")

    @cached_property
    def tcp(self) -> Table:
        """Samples of TCP connections (windows, round-trip times), where the scenario asks for them."""
        return self._table("tcp")

    def _table(self, name: str) -> Table:
        return PartsTable(self.path, name, self._keep)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the HTML report, to ``report.html`` in the result where no path is given, and returns its path."""
        target = self.path / "report.html" if path is None else Path(path)
        _native.report([self.path], target, None)
        return target

    def __repr__(self) -> str:
        """What was run, how it ended, what it came to, where it is."""
        s = self.summary
        counts = f"{s['finished']:,} {s['of']}"
        mean = "" if s["mean_us"] is None else f", mean {s['mean_us']:,.1f} us, p99 {s['p99_us']:,.1f} us"
        losses = f"{s['timeouts']:,} timeouts, {s['drops']:,} drops"
        return (
            f"<sluicenet.Result {s['scenario']} seed {s['seed']} {s['status']}: {counts}{mean}, {losses}; {self.path}>"
        )

    def _repr_html_(self) -> str:
        """The summary, for notebooks."""
        shown = {k: v for k, v in self.summary.items() if not isinstance(v, dict) and k not in ("scenario", "seed")}
        rows = "".join(
            f"<tr><th style='text-align:left'>{k}</th><td style='text-align:right'>{_shown(v)}</td></tr>"
            for k, v in shown.items()
        )
        title = html.escape(f"{self.summary['scenario']}, seed {self.summary['seed']}: {self.path}")
        return f"<table class='sluicenet'><caption>{title}</caption><tbody>{rows}</tbody></table>"


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.3f}"
        case int():
            return f"{value:,}"
    return html.escape(str(value))


def directory(of: Result | str | os.PathLike[str]) -> Path:
    """The directory of a result."""
    return of.path if isinstance(of, Result) else Path(of)
