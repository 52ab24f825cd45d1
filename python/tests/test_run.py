"""Runs: the same bytes again, and what stands in the way of one."""

from __future__ import annotations

import gc
import pickle
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import parquet

import sluicenet as sn


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_threads(incast: Path, tmp_path: Path) -> None:
    a = sn.run(incast, out=tmp_path / "a", seed=7)
    b = sn.run(incast, out=tmp_path / "b", seed=7)
    threaded = sn.run(incast, out=tmp_path / "threaded", seed=7, threads=2)
    assert len(parquet(a.path)) == 10
    assert parquet(a.path) == parquet(b.path) == parquet(threaded.path)
    assert a.manifest["seed"] == 7
    assert not sn.diff(a, threaded)


def test_another_configuration_differs_and_says_where(incast: Path, result: sn.Result) -> None:
    other = sn.run(incast, overrides={"tcp.congestion": "newreno", "workload.0.rounds": 10})
    found = sn.diff(result, other)
    assert found
    assert not found.identical
    assert "queries" in repr(found)
    assert len(other.queries) == 10


def test_a_file_a_text_and_a_dict_are_the_same_scenario(incast: Path) -> None:
    import tomllib

    text = incast.read_text()
    hashes = {sn.run(s).manifest["scenario_sha256"] for s in (incast, str(incast), text, tomllib.loads(text))}
    assert len(hashes) == 1


def test_records_without_a_directory_last_as_long_as_somebody_reads_them(incast: Path) -> None:
    result = sn.run(incast)
    path, flows = result.path, result.flows
    del result
    gc.collect()
    assert len(flows.to_arrow()) == 80
    del flows
    gc.collect()
    assert not path.exists()


def test_a_directory_that_holds_a_result_is_kept_unless_told_otherwise(incast: Path, tmp_path: Path) -> None:
    first = sn.run(incast, out=tmp_path)
    with pytest.raises(sn.RecordError, match="force=True") as e:
        sn.run(incast, out=tmp_path)
    assert Path(e.value.path) == tmp_path
    written = (tmp_path / "manifest.json").stat().st_mtime_ns
    assert sn.run(incast, out=tmp_path, resume=True).summary == first.summary
    assert (tmp_path / "manifest.json").stat().st_mtime_ns == written
    sn.run(incast, out=tmp_path, force=True)
    assert (tmp_path / "manifest.json").stat().st_mtime_ns > written


@pytest.mark.parametrize("arguments", [{"resume": True}, {"force": True}, {"threads": 0}])
def test_arguments_that_make_no_sense_are_refused(incast: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no `out`|at least 1"):
        sn.run(incast, **arguments)


def test_an_error_names_file_line_and_column_and_says_what_to_do(incast: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(incast.read_text().replace("link_rate =", "link_rat ="))
    with pytest.raises(sn.ScenarioError) as e:
        sn.run(wrong)
    assert (e.value.file, e.value.line, e.value.column) == (str(wrong), 10, 1)
    assert "link_rate" in e.value.hint
    assert f"{wrong}:10:1" in str(e.value)
    assert isinstance(e.value, ValueError)
    again = pickle.loads(pickle.dumps(e.value))
    assert (again.line, str(again)) == (10, str(e.value))


def test_an_override_and_a_missing_file_are_named_too(incast: Path) -> None:
    with pytest.raises(sn.ScenarioError) as e:
        sn.run(incast, overrides={"tcp.congestion": "cubicc"})
    assert (e.value.file, e.value.line, e.value.hint) == ("overrides", 1, "did you mean `cubic`?")
    assert "--set" not in str(e.value)
    # Told once, however it is shown.
    assert str(e.value).count("did you mean") == 1
    assert repr(e.value) == "ScenarioError('overrides:1:16: unknown congestion `cubicc`')"
    assert "".join(traceback.format_exception(e.value)).count("did you mean") == 1
    with pytest.raises(sn.ScenarioError, match=r"nowhere\.toml"):
        sn.run("nowhere.toml")
    with pytest.raises(TypeError, match="not object"):
        sn.run(incast, overrides={"tcp.congestion": object()})


def test_what_shows_when_the_network_is_built_has_a_line_too(incast: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(incast.read_text() + 'pcapng = ["switch 0 port 99"]\n')
    for call in (lambda: sn.run(wrong), lambda: sn.validate(wrong)):
        with pytest.raises(sn.ScenarioError) as e:
            call()
        assert e.value.file == str(wrong)
        assert e.value.line == len(wrong.read_text().splitlines())
        assert "port" in e.value.message


def test_what_is_odd_is_a_warning_and_validate_lists_it(incast: Path) -> None:
    assert sn.validate(incast) == []
    text = incast.read_text() + '\n[sweep]\n"scenario.seed" = [1, 2]\n'
    with pytest.warns(UserWarning, match="2 variants") as found:
        sn.run(text)
    assert found[0].filename == __file__
    with pytest.raises(sn.ScenarioError, match="unknown key"):
        sn.validate(text.replace("rounds", "round"))


def too_little_headroom() -> dict[str, object]:
    """Wires so long that 3 KB beyond XOFF do not hold what is under way."""
    pfc = {"enabled": True, "headroom": "3 KB", "xoff": "20 KB", "xon": "10 KB"}
    other = {"switch.policy": "input", "switch.buffer": "30 KB", "topology.link_delay": "20 us"}
    return {**{f"pfc.{key}": value for key, value in pfc.items()}, **other}


def test_a_loss_where_none_may_be_fails_the_run_and_keeps_its_records(incast: Path) -> None:
    with pytest.raises(sn.RunError, match="lost in a lossless class") as e:
        sn.run(incast, overrides=too_little_headroom())
    assert e.value.result is not None
    assert e.value.result.drops.to_polars()["reason"].to_list() == ["headroom_exceeded"]


def test_a_run_that_fails_stops_no_other_of_a_sweep(incast: Path, tmp_path: Path) -> None:
    text = incast.read_text() + '\n[sweep]\n"pfc.enabled" = [true, false]\n'
    overrides = {k: v for k, v in too_little_headroom().items() if k != "pfc.enabled"}
    with pytest.warns(RuntimeWarning, match="1 of 2 runs failed"):
        sweep = sn.sweep(text, out=tmp_path, overrides=overrides)
    assert [c.settings["enabled"] for c in sweep.failed] == [True]
    assert sweep[1].result.status == "complete"


def test_other_threads_of_python_go_on_during_a_run(long: dict[str, Any]) -> None:
    long["scenario"]["duration"] = "100 ms"
    turns, stop = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = turns
    result = sn.run(long)
    during = turns - before
    stop.set()
    counter.join()
    assert result.log is not None
    assert result.log["wall_seconds"] > 0.05
    assert during > 10_000


def test_progress_is_shown_when_asked_for(
    long: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long["scenario"]["duration"] = "50 ms"
    monkeypatch.setattr("sluicenet._progress._DELAY_S", 0.0)
    monkeypatch.setattr("sluicenet._progress._PLAIN_INTERVAL_S", 0.0)
    sn.run(long, progress=False)
    assert capfd.readouterr().err == ""
    sn.run(long, progress=True)
    assert "ms simulated" in capfd.readouterr().err
    # Without tqdm there is a line all the same.
    monkeypatch.setattr("sluicenet._progress._tqdm", lambda title: None)
    sn.run(long, progress=True)
    assert "%, " in capfd.readouterr().err


def test_runs_warn_of_nothing_by_themselves(incast: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repr(sn.run(incast))
        gc.collect()
