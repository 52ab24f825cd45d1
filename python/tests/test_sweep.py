"""Sweeps: the same bytes on one worker or many, kept after a stop."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from conftest import parquet

import sluicenet as sn
from sluicenet import _sweep

AXES = '\n[sweep]\n"tcp.congestion" = ["newreno", "cubic"]\n'


@pytest.fixture
def swept(incast: Path) -> str:
    """The incast under two congestion controls."""
    return incast.read_text() + AXES


def test_workers_change_nothing(swept: str, tmp_path: Path) -> None:
    one = sn.sweep(swept, out=tmp_path / "one", seeds=[1, 2], workers=1)
    two = sn.sweep(swept, out=tmp_path / "two", seeds=[1, 2], workers=2)
    assert [c.settings for c in one] == [
        {"congestion": "newreno", "seed": 1},
        {"congestion": "newreno", "seed": 2},
        {"congestion": "cubic", "seed": 1},
        {"congestion": "cubic", "seed": 2},
    ]
    assert sorted(p.name for p in one.path.iterdir() if p.is_dir())[0] == "congestion=cubic,seed=1"
    for (_, a), (_, b) in zip(one, two, strict=True):
        assert parquet(a.path) == parquet(b.path)
        assert a.status == "complete"


def test_a_sweep_goes_on_where_it_was(swept: str, tmp_path: Path) -> None:
    first = sn.sweep(swept, out=tmp_path)
    written = [c.result.path.joinpath("manifest.json").stat().st_mtime_ns for c in first]
    kept = first[0].result
    (first[1].result.path / "manifest.json").write_text(
        (first[1].result.path / "manifest.json").read_text().replace('"complete"', '"running"')
    )
    second = sn.sweep(swept, out=tmp_path)
    now = [c.result.path.joinpath("manifest.json").stat().st_mtime_ns for c in second]
    assert now[0] == written[0]
    assert now[1] > written[1]
    assert second[0].result.summary == kept.summary
    with pytest.raises(sn.RecordError, match="already holds"):
        sn.sweep(swept, out=tmp_path, resume=False)


def test_runs_and_sweeps_do_not_overwrite_each_other(swept: str, incast: Path, tmp_path: Path) -> None:
    run, sweep = tmp_path / "run", tmp_path / "sweep"
    sn.run(incast, out=run)
    sn.sweep(swept, out=sweep)
    for resume in (True, False):
        with pytest.raises(sn.RecordError, match=r"already holds the result of incast-4.*force=True"):
            sn.sweep(swept, out=run, resume=resume)
    with pytest.raises(sn.RecordError, match=r"already holds a sweep of incast-4 \(2 runs\).*force=True"):
        sn.run(incast, out=sweep)
    with pytest.raises(sn.RecordError, match="already holds a sweep of incast-4"):
        sn.sweep(swept.replace('name = "incast-4"', 'name = "other"'), out=sweep)
    assert len(sn.sweep(swept, out=run, force=True)) == 2
    assert isinstance(sn.load(run), sn.Sweep)


def test_tables_of_all_runs_have_the_settings_in_front(swept: str, tmp_path: Path) -> None:
    sweep = sn.sweep(swept, out=tmp_path)
    queries = sweep.queries.to_polars()
    assert queries.columns[:3] == ["congestion", "seed", "query_id"]
    assert len(queries) == len(sweep.queries) == 40
    assert queries["congestion"].unique(maintain_order=True).to_list() == ["newreno", "cubic"]
    summary = sweep.summary.to_pandas()
    assert list(summary["mean_us"]) == [c.result.summary["mean_us"] for c in sweep]
    assert "congestion=cubic seed=1: mean" in repr(sweep)
    assert "cubic" in sweep._repr_html_()
    assert "cubic" in sn.report(sweep).read_text().lower()
    assert sn.report(tmp_path, tmp_path / "again.html").exists()
    assert len(sn.plot.cdf(sweep).get_lines()) == 2


def test_settings_have_their_types(incast: Path, tmp_path: Path) -> None:
    axes = '"tcp.nagle" = [true, false]\n"workload.0.senders" = [2, 3]\n"workload.0.bytes" = ["1 KB", "20 KB"]\n'
    ran = sn.sweep(incast.read_text() + "\n[sweep]\n" + axes, out=tmp_path)
    loaded = sn.load(tmp_path)
    assert isinstance(loaded, sn.Sweep)
    for sweep in (ran, loaded):
        assert sweep[0].settings == {"nagle": True, "senders": 2, "bytes": "1 KB", "seed": 1}
        schema = sweep.queries.to_arrow().schema
        assert [str(schema.field(name).type) for name in ("nagle", "senders", "bytes", "seed")] == [
            "bool",
            "int64",
            "string",
            "uint64",
        ]
    assert ran[0].result.path.name == "nagle=true,senders=2,bytes=1_KB"
    assert sorted(map(str, ran.summary.to_pandas()["nagle"].unique())) == ["False", "True"]


def test_values_of_one_key_have_one_type() -> None:
    def types(values: list[str]) -> list[object]:
        return [run["x"] for run in _sweep.typed([{"x": value} for value in values])]

    assert types(["true", "false"]) == [True, False]
    assert types(["1", "20"]) == [1, 20]
    assert types(["1", "0.5"]) == [1.0, 0.5]
    assert types(["1", "auto"]) == ["1", "auto"]
    assert types(["true", "auto"]) == ["true", "auto"]
    for word in ("007", "nan", "1_000", "18446744073709551615", ""):
        assert types([word]) == [word]


def test_a_variant_that_is_wrong_stops_it_before_anything_ran(swept: str, tmp_path: Path) -> None:
    with pytest.raises(sn.ScenarioError, match="cubicc"):
        sn.sweep(swept.replace('"cubic"', '"cubicc"'), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_given_once(swept: str, tmp_path: Path) -> None:
    twice = swept + '"scenario.seed" = [1, 2]\n'
    with pytest.raises(sn.ScenarioError, match="seeds are given as well"):
        sn.sweep(twice, out=tmp_path, seeds=[3, 4])
    with pytest.raises(sn.ScenarioError, match="seeds are given as well"):
        sn.sweep(swept, out=tmp_path, overrides={"scenario.seed": 7}, seeds=[3])
    assert list(tmp_path.iterdir()) == []
    fixed = sn.sweep(twice, out=tmp_path, overrides={"scenario.seed": 7, "tcp.congestion": "cubic"})
    assert fixed[0].settings == {"seed": 7}


def test_a_folder_of_runs_opens_as_the_sweep_it_was(swept: str, tmp_path: Path) -> None:
    ran = sn.sweep(swept, out=tmp_path, seeds=[1, 2, 10])
    (tmp_path / "summary.json").rename(tmp_path / "elsewhere")
    loaded = sn.load(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "summary.json")
    assert isinstance(loaded, sn.Sweep)
    # By name, numbers by size.
    assert [(c.settings["congestion"], c.settings["seed"]) for c in loaded] == [
        (congestion, seed) for congestion in ("cubic", "newreno") for seed in (1, 2, 10)
    ]
    assert sorted(map(repr, (c.settings for c in ran))) == sorted(map(repr, (c.settings for c in loaded)))
    assert len(loaded.flows) == len(ran.flows)
    # As sluicenet sweep leaves it: in the order of the sweep.
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["folder"] for run in summary["runs"]] == [c.result.path.name for c in ran]
    again = sn.load(tmp_path)
    assert isinstance(again, sn.Sweep)
    assert [c.settings for c in again] == [c.settings for c in ran]
    assert again.flows.to_arrow().equals(ran.flows.to_arrow())


def test_seeds_are_one_configuration_of_the_summary(swept: str, tmp_path: Path) -> None:
    ran = sn.sweep(swept, out=tmp_path, seeds=[1, 2, 3])
    first = json.loads((tmp_path / "summary.json").read_text())["configurations"][0]
    assert first["axes"] == [["congestion", "newreno"]]
    assert first["seeds"] == [1, 2, 3]
    means = [c.result.summary["mean_us"] or 0.0 for c in ran][:3]
    # Student's t of two degrees of freedom.
    half_width = 4.303 * statistics.stdev(means) / 3**0.5
    assert first["mean_us"] == pytest.approx(statistics.mean(means))
    assert first["mean_half_width_us"] == pytest.approx(half_width)
