"""Results: summaries, representations, reports, plots."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import pyarrow.compute as pc
import pytest

import sluicenet as sn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

mpl.use("agg")


def test_the_summary_is_that_of_the_tables(result: sn.Result) -> None:
    s = result.summary
    queries, flows = result.queries.to_arrow(), result.flows.to_arrow()
    assert s["of"] == "queries"
    assert s["finished"] == queries.num_rows == 20
    assert s["mean_us"] == pytest.approx(pc.mean(queries["completion_ps"]).as_py() / 1e6)
    assert s["max_us"] == pc.max(queries["completion_ps"]).as_py() / 1e6
    assert s["timeouts"] == pc.sum(flows["timeouts"]).as_py()
    assert s["drops"] == pc.sum(result.ports.to_arrow()["drops"]).as_py() == s["losses_physical"]
    assert s["drops_by_reason"] == {"switch_buffer": s["drops"]}
    assert s["drops"] > 0
    assert json.loads(json.dumps(s)) == s


def test_marks_are_counted_with_and_without_the_table(incast: Path) -> None:
    of = {ports: sn.run(incast, overrides={"red.enabled": True, "record.ports": ports}) for ports in (True, False)}
    marked = of[True].summary["marked"]
    assert marked == pc.sum(of[True].marks.to_arrow()["frames"]).as_py() == of[False].summary["marked"]
    assert marked > 0
    assert of[False].marks.to_arrow().num_rows == 0


def test_the_summary_has_the_figures_that_the_command_prints(result: sn.Result, tmp_path: Path) -> None:
    s = result.summary
    printed = json.loads((result.path / "summary.json").read_text())
    names = ["bound_us", "mean_round_us", "packet_hops", "packets_end_to_end", "simulated_us", "lossless_violations"]
    names += ["flow_control", "left_out", "messages"]
    assert {name: s[name] for name in names} == {name: printed[name] for name in names}  # type: ignore[literal-required]
    for name in ("drops", "timeouts", "retransmissions", "losses_virtual", "losses_physical", "pauses"):
        assert s[name] == printed[name], name
    for name in ("finished", "unfinished", "mean_us", "p50_us", "p95_us", "p99_us", "p999_us", "max_us"):
        assert s[name] == printed["queries"][name], name  # type: ignore[literal-required]
    assert s["mean_round_us"] == s["mean_us"]
    assert s["mean_us"] == round(s["mean_us"] or 0.0, 6)
    assert s["bound_us"] is not None
    assert s["mean_us"] is not None
    assert 0 < s["bound_us"] < s["mean_us"]
    # A kill leaves records without figures, and a manifest that says so.
    killed = tmp_path / "killed"
    shutil.copytree(result.path, killed)
    (killed / "summary.json").unlink()
    manifest = killed / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete"', '"running"'))
    with pytest.warns(UserWarning, match="was killed"):
        loaded = sn.load(killed)
    assert isinstance(loaded, sn.Result)
    left = loaded.summary
    assert (left["status"], left["bound_us"], left["packet_hops"]) == ("running", None, None)
    assert (left["mean_us"], left["drops"], left["pauses"]) == (s["mean_us"], s["drops"], s["pauses"])


def test_a_run_of_flows_sums_up_flows(incast: Path) -> None:
    flow = {"kind": "flow", "src": 0, "dst": 4, "bytes": "100 KB"}
    r = sn.run(incast, overrides={"workload": [flow, {**flow, "src": 1}]})
    assert (r.summary["of"], r.summary["finished"]) == ("flows", 2)
    assert r.summary["mean_us"] == pytest.approx(pc.mean(r.flows.to_arrow()["fct_ps"]).as_py() / 1e6)


def test_a_loaded_result_is_the_one_that_was_run(result: sn.Result) -> None:
    loaded = sn.load(result.path)
    assert isinstance(loaded, sn.Result)
    assert loaded.manifest == result.manifest
    assert loaded.summary == result.summary
    assert loaded.status == "complete"
    assert loaded.log is not None
    assert loaded.log["threads"] == 1


def test_other_programs_manifests_and_formats_are_told_apart(result: sn.Result, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(sn.RecordError, match="holds no result"):
        sn.report(tmp_path)
    shutil.copytree(result.path, tmp_path / "mine")
    sweep = sn.load(tmp_path)
    assert isinstance(sweep, sn.Sweep)
    assert [c.result.path.name for c in sweep] == ["mine"]
    manifest = tmp_path / "mine" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(sn.RecordError, match="result format 1, of an earlier version"):
        sn.load(tmp_path)


def test_representations_help(result: sn.Result) -> None:
    text = repr(result)
    assert "incast-4 seed 1 complete: 20 queries, mean " in text
    assert str(result.path) in text
    assert repr(result.flows).startswith("<sluicenet.Table flows: 80 rows of flow_id, kind,")
    assert "<td style='text-align:left'>incast</td>" in result.flows._repr_html_()
    assert "incast-4" in result._repr_html_()


def test_a_report_is_one_page(result: sn.Result, tmp_path: Path) -> None:
    path = sn.report(result, tmp_path / "page.html", title="Four to <one>")
    page = path.read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "Four to &lt;one&gt;" in page
    assert sn.report(result.path, tmp_path / "again.html").exists()


def test_plots_draw_what_they_are_given(result: sn.Result) -> None:
    lines = sn.plot.cdf(result, result, labels=["a", "b"]).get_lines()
    assert len(lines) == 2
    assert len(lines[0].get_xdata()) == 21  # type: ignore[arg-type]
    rows = sn.plot.completion(result).get_yticklabels()
    assert [t.get_text() for t in rows] == ["incast-4"]
    with pytest.raises(ValueError, match="1 labels for 2 results"):
        sn.plot.cdf(result, result, labels=["a"])


def test_courses_are_drawn_by_queue_by_limiter_and_by_result(tmp_path: Path) -> None:
    flows = "".join(f'[[workload]]\nkind = "flow"\nsrc = {src}\ndst = 3\ntransport = "udp"\n' for src in range(3))
    text = (
        '[scenario]\nparameters = "crisan2014-ch2"\nduration = "4 ms"\n[topology]\nkind = "single-switch"\nhosts = 4\n'
        f'[qcn]\nenabled = true\n{flows}[record]\nqueues = "100 us"\nqueue_ports = ["switch 0 port 3"]\n'
        'limiters = "500 us"\n'
    )
    result = sn.run(text, out=tmp_path / "qcn")
    (queue,) = sn.plot.queues(result).get_lines()
    lengths = np.asarray(queue.get_ydata(), dtype=float)
    assert len(lengths) == result.queues.to_arrow().num_rows
    assert 0 < lengths.max() <= 100
    limiters = sn.plot.limiters(result)
    assert [line.get_label() for line in limiters.get_lines()] == [f"host {src} to 3" for src in range(3)]
    (rate,) = sn.plot.streams(result).get_lines()
    assert 5 < np.asarray(rate.get_ydata(), dtype=float).max() < 10
    # Flows without an end have their courses there, and no byte twice.
    bits = 8 * pc.sum(result.flows.to_arrow()["delivered_bytes"]).as_py()
    assert area(sn.plot.throughput(result)) / 1e3 == pytest.approx(bits, rel=0.01)
    finite = '[[workload]]\nkind = "flow"\nsrc = 1\ndst = 2\nbytes = "1 KB"\n'
    with pytest.raises(ValueError, match=r"scenario\.duration"):
        sn.plot.streams(sn.run(text.replace('duration = "4 ms"\n', "") + finite))
    with pytest.raises(ValueError, match="no flow without an end"):
        sn.plot.streams(sn.run(text.split("[qcn]")[0] + finite))
    unrecorded = sn.run(text.split("[record]")[0])
    with pytest.raises(ValueError, match=r"record\.queues"):
        sn.plot.queues(unrecorded)
    with pytest.raises(ValueError, match=r"record\.limiters"):
        sn.plot.limiters(unrecorded)


def area(axes: Axes) -> float:
    """The only line's values over the time in picoseconds, from its even intervals in milliseconds."""
    (line,) = axes.get_lines()
    times, values = (np.asarray(data, dtype=float) for data in line.get_data())
    assert len(times) == 160
    return float(values.sum() * (times[1] - times[0]) * 1e9)


def test_throughput_and_pauses_keep_every_byte_and_picosecond(incast: Path, tmp_path: Path) -> None:
    flow = '[[workload]]\nkind = "flow"\nsrc = 0\ndst = 1\nbytes = "2 MB"\nstart = "100 us"\n'
    lossless = {"pfc.enabled": True, "pfc.xoff": "20 KB", "pfc.xon": "10 KB", "switch.buffer": "200 KB"}
    overrides = {**lossless, "record.pauses": True}
    result = sn.run(incast.read_text() + flow, out=tmp_path / "pfc", overrides=overrides)
    bits = 8 * pc.sum(result.flows.to_arrow()["delivered_bytes"]).as_py()
    assert bits == 8 * (20 * 4 * 64_000 + 2_000_000)
    throughput = sn.plot.throughput(result)
    assert throughput.get_ylabel() == "payload (Gb/s)"
    # Gb/s are bits in a nanosecond.
    assert area(throughput) / 1e3 == pytest.approx(bits, rel=1e-6)
    held = [ps for ps in result.pauses.to_arrow()["duration_ps"].to_pylist() if ps is not None]
    assert len(held) > 10
    assert area(sn.plot.pauses(result)) == pytest.approx(sum(held), rel=1e-6)
    # A run that was killed, without flows: drawn as far as its last pause.
    killed = tmp_path / "killed"
    shutil.copytree(result.path, killed, ignore=shutil.ignore_patterns("summary.json", "flows-*"))
    manifest = killed / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete"', '"running"'))
    with pytest.warns(UserWarning, match="was killed"):
        assert area(sn.plot.pauses(sn.load(killed))) == pytest.approx(sum(held), rel=1e-6)
    lossy = sn.run(incast)
    with pytest.raises(ValueError, match=r"record\.pauses"):
        sn.plot.pauses(lossy)
    both = sn.plot.throughput(result, lossy, labels=["PFC", "drop-tail"])
    assert [line.get_label() for line in both.get_lines()] == ["PFC", "drop-tail"]


def test_slowdown_is_drawn_by_size_and_percentile(incast: Path, tmp_path: Path) -> None:
    more = '[[workload]]\nkind = "incast"\nsenders = 2\nreceiver = 3\nbytes = "1 KB"\nrounds = 9\n'
    sweep = sn.sweep(incast.read_text() + more, out=tmp_path, seeds=[1, 2])
    flows = sweep[0].result.flows.to_polars().sort("slowdown")
    axes = sn.plot.slowdown(sweep[0].result)
    assert [line.get_label() for line in axes.get_lines()] == ["median", "p99", "p99.9"]
    for line, share in zip(axes.get_lines(), (0.5, 0.99, 0.999), strict=True):
        sizes, values = (list(np.asarray(data, dtype=float)) for data in line.get_data())
        assert sizes == [1_000, 64_000]
        for size, value in zip(sizes, values, strict=True):
            of_size = flows.filter(flows["bytes"] == int(size))["slowdown"].to_list()
            # The nearest rank: a value that a flow had.
            assert value == of_size[math.ceil(share * len(of_size)) - 1]
    # Seeds of a configuration are one curve.
    assert len(sn.plot.slowdown(sweep).get_lines()) == 3
    # Without loss all values are between two powers of ten; there are marks enough, too.
    fair = sn.plot.slowdown(sn.run(incast, overrides={"switch.buffer": "1 MB"}))
    low, high = fair.get_ylim()
    assert 1 < high / low < 10
    marks = zip(fair.get_yticks(), fair.get_yticklabels(), strict=True)
    assert sum(low <= at <= high and label.get_text() != "" for at, label in marks) >= 3
    with pytest.raises(ValueError, match=r"record\.flows"):
        sn.plot.slowdown(sn.run(incast, overrides={"record.flows": False}))


def test_the_schema_is_one(incast: Path) -> None:
    schema = sn.schema()
    assert "topology" in schema["properties"]
    assert sn.__version__.count(".") == 2
