"""Exports, read as other tools read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import perfetto_trace
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

import sluicenet as sn

TREE: dict[str, Any] = {
    "scenario": {"name": "tree"},
    "topology": {"kind": "xgft", "m": [4, 4], "w": [1, 2], "routing": "hash"},
    "pfc": {"enabled": True},
    "record": {"pauses": True, "queues": "20 us"},
    "workload": [
        {"kind": "incast", "transport": "roce", "senders": 12, "receiver": 15, "bytes": "256 KB", "rounds": 2},
    ],
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> sn.Result:
    """An incast over two levels of switches: its pauses are trees."""
    return sn.run(TREE, out=tmp_path_factory.mktemp("tree"), progress=False)


@pytest.fixture(scope="module")
def trace(tree: sn.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sn.export.perfetto(tree, tmp_path_factory.mktemp("trace") / "tree.pftrace")


def end_ns(result: sn.Result) -> int:
    simulated_us = result.summary["simulated_us"]
    assert simulated_us is not None
    return round(simulated_us * 1_000)


def test_a_trace_is_perfettos_and_has_what_the_records_have(tree: sn.Result, trace: Path) -> None:
    seen = perfetto_trace.check(trace.read_bytes(), end_ns(tree))
    pauses = {p["pause_id"]: p for p in tree.pauses.to_arrow().to_pylist()}
    ports = tree.ports.to_arrow().to_pylist()
    assert sorted(seen.processes) == sorted({p["node"] for p in ports})
    assert len(seen.slices) == len(pauses) > 100
    for s in seen.slices:
        p = pauses[s.args["pause_id"]]
        assert seen.name(s.track) == f"{p['node']}, port {p['port']} priority {p['priority']}"
        assert s.name == f"pauses {p['peer']}"
        assert s.begin_ns == p["start_ps"] // 1_000
        assert s.end_ns == (p["start_ps"] + p["duration_ps"]) // 1_000
        args = {name: p[name] for name in ("pause_id", "start_ps", "duration_ps", "cause_port", "cause_peer")}
        assert {name: value for name, value in s.args.items() if name != "parent_pause_id"} == args
        assert s.args.get("parent_pause_id") == p["parent_pause_id"]
    # An arrow is a cause: the first pause holds the sender of the second at the output whose queue filled its buffer,
    # and holds it still.
    arrows = {flow: s.args["pause_id"] for s in seen.slices for flow in s.flows}
    caused = [p for p in pauses.values() if p["parent_pause_id"] is not None]
    assert len(arrows) == len(caused) > 50
    for p in caused:
        cause = pauses[p["parent_pause_id"]]
        assert (cause["node"], cause["peer"], cause["priority"]) == (p["cause_peer"], p["node"], p["priority"])
        assert cause["start_ps"] < p["start_ps"] <= cause["start_ps"] + cause["duration_ps"]


def test_counters_step_as_the_queues_do(tree: sn.Result, trace: Path) -> None:
    seen = perfetto_trace.check(trace.read_bytes())
    want: dict[str, list[tuple[int, int]]] = {}
    for q in tree.queues.to_arrow().to_pylist():
        steps = want.setdefault(f"{q['node']}, port {q['port']} queue", [])
        if not steps or steps[-1][1] != q["bytes"]:
            steps.append((q["time_ps"] // 1_000, q["bytes"]))
    assert {seen.name(track): values for track, values in seen.counters.items()} == want
    assert max(value for steps in want.values() for _, value in steps) > 50_000


def events(trace: Trace, kind: int) -> list[TracePacket]:
    return [p for p in trace.packet if p.HasField("track_event") and p.track_event.type == kind]


def begins(trace: Trace) -> list[TracePacket]:
    return events(trace, TrackEvent.TYPE_SLICE_BEGIN)


def lose_an_end(trace: Trace) -> None:
    trace.packet.remove(events(trace, TrackEvent.TYPE_SLICE_END)[0])


def lose_a_begin(trace: Trace) -> None:
    begin = next(p for p in begins(trace) if not p.HasField("interned_data"))
    trace.packet.remove(begin)


def turn_time_back(trace: Trace) -> None:
    events(trace, TrackEvent.TYPE_SLICE_END)[-1].timestamp = 0


def happen_late(trace: Trace) -> None:
    events(trace, TrackEvent.TYPE_COUNTER)[-1].timestamp = 1 << 50


def cut_an_arrow(trace: Trace) -> None:
    del next(p for p in begins(trace) if p.track_event.flow_ids).track_event.flow_ids[:]


def fork_an_arrow(trace: Trace) -> None:
    flows = [p.track_event.terminating_flow_ids for p in begins(trace) if p.track_event.terminating_flow_ids]
    flows[1][:] = flows[0]


def turn_an_arrow(trace: Trace) -> None:
    end = next(p.track_event for p in begins(trace) if p.track_event.terminating_flow_ids)
    flow = end.terminating_flow_ids[0]
    begin = next(p.track_event for p in begins(trace) if flow in p.track_event.flow_ids)
    begin.flow_ids.remove(flow)
    begin.terminating_flow_ids.append(flow)
    end.terminating_flow_ids.remove(flow)
    end.flow_ids.append(flow)


def forget_names(trace: Trace) -> None:
    next(p for p in trace.packet if p.HasField("interned_data")).ClearField("interned_data")


def forget_a_track(trace: Trace) -> None:
    trace.packet.remove([p for p in trace.packet if p.HasField("track_descriptor")][-1])


def say_another_kind(trace: Trace) -> None:
    events(trace, TrackEvent.TYPE_COUNTER)[0].track_event.type = TrackEvent.TYPE_SLICE_BEGIN


@pytest.mark.parametrize(
    "damage",
    [
        lose_an_end,
        lose_a_begin,
        turn_time_back,
        happen_late,
        cut_an_arrow,
        fork_an_arrow,
        turn_an_arrow,
        forget_names,
        forget_a_track,
        say_another_kind,
    ],
)
def test_the_check_finds_damage(tree: sn.Result, trace: Path, damage: Callable[[Trace], None]) -> None:
    damaged = Trace.FromString(trace.read_bytes())
    damage(damaged)
    with pytest.raises((AssertionError, KeyError)):
        perfetto_trace.check(damaged.SerializeToString(), end_ns(tree))


def test_the_check_finds_fields_that_the_schema_lacks(trace: Path) -> None:
    # Field 1023 of a trace: nobody's.
    with pytest.raises(AssertionError, match="a field that Trace does not have"):
        perfetto_trace.check(trace.read_bytes() + b"\xf8\x3f\x01")


def test_trace_processor_reads_a_trace(tree: sn.Result, trace: Path) -> None:
    processor = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if processor is None:
        # The package `perfetto` would fetch it from the internet, and no registry has it.
        pytest.skip("not checked: trace_processor_shell is not there")
    errors = "select sum(value) from stats where severity = 'error'"
    query = f"select count(*) from slice; select count(*) from flow; {errors}"
    told = subprocess.run([processor, "-Q", query, trace], capture_output=True, text=True, check=True).stdout
    pauses = tree.pauses.to_arrow().to_pylist()
    arrows = sum(p["parent_pause_id"] is not None for p in pauses)
    assert [int(n) for n in re.findall(r"^(\d+)$", told, re.MULTILINE)] == [len(pauses), arrows, 0]


def test_hpccs_files_agree_with_the_records(tree: sn.Result, tmp_path: Path) -> None:
    fct, pfc, qlen = (path.read_text().splitlines() for path in sn.export.hpcc(tree, tmp_path))
    flows = tree.flows.to_arrow().to_pylist()
    # As `fct_analysis.py` reads it, with awk: an incast has the port 200; the slowdown is field 7 over field 8.
    rows = [line.split() for line in fct]
    assert {row[3] for row in rows} == {"200"}
    want = sorted(f["fct_ps"] / f["ideal_ps"] for f in flows)
    assert sorted(int(row[6]) / int(row[7]) for row in rows) == pytest.approx(want, rel=1e-5)
    assert sorted((int(row[0], 16) >> 8) & 0xFFFF for row in rows) == sorted(f["src_host"] for f in flows)
    ends = [int(row[5]) + int(row[6]) for row in rows]
    assert all(a <= b + 2 for a, b in pairwise(ends)), "rounded, in the order of completion"
    # A port is paused and resumed in turns; there are 16 hosts, and switches behind them.
    state: dict[tuple[str, str], str] = {}
    for line in pfc:
        time_ns, node, kind, interface, pause = line.split()
        assert 0 <= int(time_ns) <= end_ns(tree)
        assert kind == str(int(int(node) >= 16))
        assert state.get((node, interface), "0") != pause
        state[node, interface] = pause
    assert set(state.values()) == {"0"}
    stops = {p["node"]: 0 for p in tree.ports.to_arrow().to_pylist()}
    for p in tree.ports.to_arrow().to_pylist():
        stops[p["node"]] += p["xoff_received"]
    numbers = {name: int(name.split()[1]) + 16 * name.startswith("switch") for name in stops}
    paused = Counter(int(line.split()[1]) for line in pfc if line.endswith(" 1"))
    assert {numbers[name]: n for name, n in stops.items() if n} == paused
    # The last lines count every sample of a switch's port.
    queues = [q for q in tree.queues.to_arrow().to_pylist() if q["node"].startswith("switch")]
    begin = len(qlen) - 1 - next(i for i, line in enumerate(reversed(qlen)) if line.startswith("time: "))
    counted = {
        (int(node), int(interface), kb): int(n)
        for node, interface, *counts in map(str.split, qlen[begin + 1 :])
        for kb, n in enumerate(counts)
        if n != "0"
    }
    assert counted == Counter((numbers[q["node"]], q["port"] + 1, q["bytes"] // 1_000) for q in queues)


def test_flows_have_the_ids_of_their_connection_matrix(tmp_path: Path) -> None:
    matrix = tmp_path / "flows.cm"
    matrix.write_text("Nodes 4\nConnections 2\n0->1 id 12 start 0 size 3000\n2->1 id 7 start 1000000 size 3000\n")
    scenario = {
        "scenario": {"name": "matrix"},
        "topology": {"kind": "single-switch", "hosts": 4},
        "workload": [{"kind": "flow-file", "format": "htsim", "file": str(matrix)}],
    }
    result = sn.run(scenario, progress=False)
    log = sn.export.htsim(result, tmp_path / "log", matrix=matrix).read_text().splitlines()
    finished = [line.split() for line in log if "finished" in line]
    assert [(words[1], words[3]) for words in finished] == [("ndp_0_1", "12"), ("ndp_2_1", "7")]


def test_htsims_log_agrees_with_the_records(tree: sn.Result, tmp_path: Path) -> None:
    log = sn.export.htsim(tree, tmp_path / "log").read_text().splitlines()
    flows = tree.flows.to_arrow().to_pylist()
    # As the scripts beside htsim read it: by the place of a word in its line.
    finished = [line.split() for line in log if "finished" in line]
    started = [line.split() for line in log if "startflow" in line]
    assert sorted(float(words[6]) for words in finished) == sorted((f["start_ps"] + f["fct_ps"]) / 1e6 for f in flows)
    assert sorted(float(words[7]) for words in started) == sorted(f["start_ps"] / 1e6 for f in flows)
    assert {words[1] for words in started} == {f"ndp_{f['src_host']}_{f['dst_host']}" for f in flows}
    assert sorted(int(words[3]) for words in finished) == list(range(1, len(flows) + 1))
    times = [float(line.rsplit(" at ", 1)[1].split()[0]) for line in log]
    assert times == sorted(times)


def test_errors_name_the_result_and_the_setting(result: sn.Result, tmp_path: Path) -> None:
    bare = sn.run({**TREE, "record": {}}, progress=False)
    with pytest.raises(sn.RecordError, match=r'`record.pauses = true` and `record.queues = "10 us"`') as lacks:
        sn.export.perfetto(bare, tmp_path / "trace")
    assert lacks.value.path == bare.path
    with pytest.raises(sn.RecordError, match="holds no result"):
        sn.export.htsim(tmp_path)
    with pytest.raises(OSError, match="cannot write: No such file"):
        sn.export.htsim(result, tmp_path / "none" / "log")
    with pytest.raises(ValueError, match='only: "flows" is none of fct, pfc, qlen'):
        sn.export.hpcc(result, tmp_path, only=["flows"])  # type: ignore[list-item]
    with pytest.raises(sn.ScenarioError, match="there is no such file"):
        sn.export.htsim(result, matrix=tmp_path / "none.cm")
    with pytest.raises(sn.ScenarioError, match="there is no such file"):
        sn.export.hpcc(result, tmp_path, only=["fct"], flows=tmp_path / "none.txt")
    killed = tmp_path / "killed"
    shutil.copytree(result.path, killed)
    manifest = json.loads((killed / "manifest.json").read_text())
    (killed / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    with pytest.raises(sn.RecordError, match=r"incomplete \(running\): .* with partial=True"):
        sn.export.htsim(killed)
    assert sn.export.htsim(killed, partial=True).read_bytes() == sn.export.htsim(result, tmp_path / "log").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "log"]
