"""Ctrl-C: a run stops at the end of an epoch, and what it recorded is readable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sluicenet as sn
from sluicenet._result import Scratch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot send SIGINT on Windows")

STOPS_WITHIN_S = 5.0


@contextmanager
def ctrl_c(after_s: float) -> Iterator[None]:
    """A hand on Ctrl-C, also where whoever started the tests has them ignore it, as a shell's background jobs do."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert time.monotonic() - start < after_s + STOPS_WITHIN_S


def test_a_run_stops_and_leaves_its_records(long: dict[str, Any], tmp_path: Path) -> None:
    with ctrl_c(0.5), pytest.raises(KeyboardInterrupt) as e:
        sn.run(long, out=tmp_path)
    assert isinstance(e.value, sn.Interrupted)
    assert str(tmp_path) in str(e.value)
    assert isinstance(e.value.result, sn.Result)
    loaded = sn.load(tmp_path)
    assert isinstance(loaded, sn.Result)
    assert loaded.status.startswith("interrupted at ")
    assert loaded.summary == e.value.result.summary
    assert loaded.summary["finished"] > 0
    assert len(loaded.flows.to_polars()) > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_records_in_a_temporary_directory_come_with_the_exception(long: dict[str, Any], threads: int) -> None:
    with ctrl_c(0.3), pytest.raises(sn.Interrupted) as e:
        sn.run(long, threads=threads)
    assert len(e.value.result.queries) > 0


def test_what_a_kill_leaves_is_removed_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import time; from sluicenet._result import Scratch; s = Scratch(); print(s.path, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (killed, left), (alive, kept) = start(), start()
    killed.kill()
    killed.communicate()
    Scratch()
    assert left.exists(), "too young: it may not be locked yet"
    for directory in (left, kept):
        os.utime(directory / "in-use", (0, 0))
    other = tmp_path / "sluicenet-of-mine"
    other.mkdir()
    mine = Scratch()
    assert sorted(tmp_path.iterdir()) == sorted([kept, other, mine.path])
    alive.kill()
    alive.communicate()


def test_what_a_handler_raises_goes_through(long: dict[str, Any]) -> None:
    def handler(*_: object) -> None:
        raise RuntimeError("enough")

    before = signal.signal(signal.SIGINT, handler)
    try:
        with ctrl_c(0.3), pytest.raises(RuntimeError, match="enough"):
            sn.run(long)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_sweep_stops_and_goes_on(long: dict[str, Any], tmp_path: Path) -> None:
    long["sweep"] = {"scenario.duration": ["10 ms", "100 s"]}
    with ctrl_c(1.0), pytest.raises(sn.Interrupted, match="1 of 2 runs are complete") as e:
        sn.sweep(long, out=tmp_path, workers=2)
    assert [c.settings["duration"] for c in e.value.result] == ["10 ms"]  # type: ignore[union-attr]
    long["sweep"] = {"scenario.duration": ["10 ms", "20 ms"]}
    assert len(sn.sweep(long, out=tmp_path)) == 2
