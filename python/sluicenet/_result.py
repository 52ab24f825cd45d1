"""Results on disk."""

from __future__ import annotations

import html
import json
import os
import shutil
import tempfile
import time
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
    and ``retransmissions`` are those of all messages, what follows counts the whole run. From ``flow_control`` on, a
    run that was killed has None; ``mean_round_us`` and ``bound_us`` (a round at line rate) are of an incast;
    ``left_out`` counts what the warm-up left out of the times; ``messages`` are those of all kinds, begun and
    delivered in full.

    Flat, so that it is a row of a table; ``summary.json`` and ``--json`` have the times of queries and of flows in
    objects of their own: ``mean_us`` here is ``queries.mean_us`` there, or ``flows.mean_us`` where ``of`` is flows.
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
    marked: int
    notifications: int
    drops_by_reason: dict[str, int]
    flow_control: str | None
    mean_round_us: float | None
    bound_us: float | None
    simulated_us: float | None
    packet_hops: int | None
    packets_end_to_end: int | None
    lossless_violations: int | None
    left_out: int | None
    messages: list[int] | None


_PREFIX = "sluicenet-"
_IN_USE = "in-use"
"""A file in a temporary directory that its process holds locked; a kill ends that too."""
_SETTLED_S = 60.0
"""Between making that file and locking it passes less."""


class Scratch:
    """A directory that is gone when this is, or, where this process is killed, when the next one is made."""

    def __init__(self) -> None:
        """A new one, where the system keeps such things."""
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        held = _locked(self.path / _IN_USE, os.O_CREAT)
        self._remove = weakref.finalize(self, _remove, self.path, held)


def _locked(file: Path, flags: int = 0) -> int | None:
    """The file, open and locked; None where another process holds it or the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        opened = os.open(file, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened


def _remove(path: Path, held: int | None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if held is not None:
        os.close(held)


def _remove_abandoned(folder: Path) -> None:
    """Removes what killed processes left."""
    for mark in folder.glob(f"{_PREFIX}*/{_IN_USE}"):
        try:
            age_s = time.time() - mark.stat().st_mtime
        except OSError:
            continue
        if age_s > _SETTLED_S and (held := _locked(mark)) is not None:
            _remove(mark.parent, held)


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
    def streams(self) -> dict[str, Any]:
        """Flows without an end: the payload of each in intervals; empty where there are none."""
        found: dict[str, Any] = read_json(self.path / "summary.json").get("streams", {})
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
    def marks(self) -> Table:
        """Frames marked and congestion notifications sent, by port and priority."""
        return self._table("marks")

    @cached_property
    def limiters(self) -> Table:
        """Samples of rate limiters, where the scenario asks for them."""
        return self._table("limiters")

    @cached_property
    def estimates(self) -> Table:
        """Samples of what bumps estimate of switches' queues, beside the samples of these queues."""
        return self._table("estimates")

    @cached_property
    def bumps(self) -> Table:
        """The virtual queues of bumps: frames seen, marked and dropped."""
        return self._table("bumps")

    @cached_property
    def storms(self) -> Table:
        """The storms that the PFC watchdogs of switches found, by port and priority."""
        return self._table("storms")

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
        shown = {
            k: v for k, v in self.summary.items() if not isinstance(v, dict | list) and k not in ("scenario", "seed")
        }
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
