"""What is known of a run is read from its folder, whatever state that is in."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from proximo.config import Config
from proximo.run_dir.directory import RunDirectory
from proximo.run_dir.read import NewRows, is_complete, is_running, list_runs, read_rows, read_status, thinned

RESULT = {"stop_reason": "budget", "total_steps": 30, "final_return": 1.5, "final_eval": {"return_mean": 2.5}}


def a_run(path: Path, rows: int = 3) -> RunDirectory:
    """A run that goes on: three updates of ten steps, with a return of ten for each update."""
    directory = RunDirectory(path)
    directory.begin(Config())
    directory.append([{"update": n, "step": 10 * n, "recent/return_mean": 10.0 * n} for n in range(1, rows + 1)])
    return directory


def ended(path: Path, **changed: Any) -> Path:
    directory = a_run(path)
    directory.finish(RESULT | changed)
    directory.close()
    return path


def test_the_state_of_a_run(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    found = read_status(run.path)
    assert (found.state, found.steps, found.episode_return, found.result) == ("running", 30, 30.0, None)
    run.finish(RESULT)
    assert read_status(run.path).state == "running", "it may still write"
    run.close()
    found = read_status(run.path)
    assert (found.state, found.steps, found.episode_return, found.result) == ("complete", 30, 2.5, RESULT)
    (run.path / "result.json").unlink()
    found = read_status(run.path)
    assert (found.state, found.episode_return, found.result) == ("stopped without an end", 30.0, None)


def test_the_return_of_a_run_without_a_final_evaluation(tmp_path: Path) -> None:
    found = read_status(ended(tmp_path / "run", stop_reason="interrupted", final_eval=None))
    assert (found.state, found.episode_return) == ("interrupted", 1.5)
    assert not is_complete(tmp_path / "run")
    assert is_complete(ended(tmp_path / "other"))


@pytest.mark.parametrize(
    "damage",
    [
        *({"total_steps": "many"}, {"total_steps": None}, {"stop_reason": 3}, {"final_return": [], "final_eval": None}),
        *({"final_eval": {"return_mean": "high"}}, {"final_eval": 7}, {"final_eval": {"return_mean": True}}),
    ],
    ids=str,
)
def test_damaged_results_are_not_believed(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = ended(tmp_path / "run")
    (path / "result.json").write_text(json.dumps(RESULT | damage))
    assert list_runs(tmp_path) == []
    assert not is_complete(path)


def test_to_look_at_a_run_does_not_keep_it_from_being_trained(tmp_path: Path) -> None:
    path = ended(tmp_path / "run")
    assert not is_running(path)
    RunDirectory.reopen(path, 3).close()


def test_long_runs_are_thinned(tmp_path: Path) -> None:
    rows = [{"update": n} | ({"eval/episodes": 3} if n % 5 == 0 else {}) for n in range(1, 101)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = read_rows(tmp_path, 11, 3)
    updates = [one["update"] for one in found]
    assert (updates[0], updates[-1]) == (1, 100)
    assert next(one["update"] for one in found if "eval/episodes" in one) == 5
    assert len(found) <= 14
    assert read_rows(tmp_path) == rows
    gaps = [b - a for a, b in pairwise(thinned(range(1000), 10))]
    assert set(gaps) == {111}


def test_rows_are_read_once_and_whole(tmp_path: Path) -> None:
    file, rows = tmp_path / "metrics.jsonl", NewRows(tmp_path)
    file.write_bytes(b'{"update": 1}\n{"upd')
    assert rows.read() == [{"update": 1}]
    assert rows.read() == []
    with file.open("ab") as more:
        more.write(b'ate": 2}\n')
    assert rows.read() == [{"update": 2}]


@pytest.mark.parametrize("made_again", [0, 1, 2, 3])
def test_rows_that_a_resume_cut_off_and_made_again_are_read_from_the_start(tmp_path: Path, made_again: int) -> None:
    file, rows = tmp_path / "metrics.jsonl", NewRows(tmp_path)
    first, old = b'{"update": 1, "time/elapsed": 0.5}\n', b'{"update": 2, "time/elapsed": 0.75}\n'
    file.write_bytes(first + old)
    assert [row["update"] for row in rows.read()] == [1, 2]
    new = [b'{"update": %d, "time/elapsed": 1.375}\n' % update for update in (2, 3, 4)][:made_again]
    file.write_bytes(first + b"".join(new))
    assert [row["update"] for row in rows.read()] == [1, 2, 3, 4][: 1 + made_again]
    assert rows.read() == []
