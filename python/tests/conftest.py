"""What the tests share: a small incast, and a run that would take minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sluicenet as sn

INCAST = Path(__file__).parent / "data" / "incast.toml"


@pytest.fixture
def incast() -> Path:
    """Four to one, with loss: a scenario of a few milliseconds."""
    return INCAST


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> sn.Result:
    """The incast, run once."""
    return sn.run(INCAST, out=tmp_path_factory.mktemp("incast"), progress=False)


@pytest.fixture
def long() -> dict[str, Any]:
    """Sixteen hosts that send without end, for minutes of this machine's time."""
    return {
        "scenario": {"name": "long", "parameters": "plain", "duration": "100 s"},
        "topology": {"kind": "single-switch", "hosts": 16, "link_rate": "10 Gb/s", "link_delay": "1 us"},
        "pfc": {"enabled": True},
        "workload": [
            {"kind": "incast", "senders": 8, "receiver": 15, "bytes": "20 KB", "rounds": 100_000_000},
            {"kind": "permutation", "pattern": "stride", "stride": 4},
        ],
    }


def parquet(directory: Path) -> dict[str, bytes]:
    """The bytes of all that has to be the same."""
    names = [*directory.glob("*.parquet"), directory / "manifest.json"]
    return {path.name: path.read_bytes() for path in sorted(names)}
