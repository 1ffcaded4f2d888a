"""The folder of a run as it is taken and written: by one process, and never outside of it."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from proximo.config import Config
from proximo.errors import UserError
from proximo.run_dir.directory import RunDirectory, default_directory


def begun(path: Path, rows: int = 3) -> RunDirectory:
    store = RunDirectory(path)
    store.begin(Config())
    store.append([{"update": number + 1} for number in range(rows)])
    return store


def test_a_run_at_work_keeps_what_it_is_writing(tmp_path: Path) -> None:
    """Files that are half written were removed before the lock was asked for."""
    store = begun(tmp_path / "run")
    partial = tmp_path / "run" / ".step_1.safetensors.abc.partial"
    partial.write_text("half")
    for rows in (1, 3):
        with pytest.raises(UserError, match="being trained by another process"):
            RunDirectory.reopen(tmp_path / "run", rows)
        assert partial.exists()
    store.close()
    RunDirectory.reopen(tmp_path / "run", 1).close()
    assert not partial.exists()


def test_reopening_keeps_the_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proximo.run_dir.directory.CHUNK", 7)  # rows are longer and shorter than what is read at once
    begun(tmp_path / "run").close()
    store = RunDirectory.reopen(tmp_path / "run", 2)
    store.begin(Config())
    store.append([{"update": 30}])
    store.close()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"update": 1}, {"update": 2}, {"update": 30}]
    with pytest.raises(UserError, match="has lost rows: the run had made 4 updates"):
        RunDirectory.reopen(tmp_path / "run", 4)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"half": ')
    with pytest.raises(UserError, match="has lost rows"):
        RunDirectory.reopen(tmp_path / "run", 4)
    RunDirectory.reopen(tmp_path / "run", 0).close()


def test_many_rows_need_no_memory(tmp_path: Path) -> None:
    begun(tmp_path / "run", 0).close()
    with (tmp_path / "run" / "metrics.jsonl").open("w") as file:
        file.write(('{"update": 1, "more": "' + 150 * "x" + '"}\n') * 200_000)  # 35 MB
    tracemalloc.start()
    store = RunDirectory.reopen(tmp_path / "run", 200_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    store.close()
    assert store.num_rows == 200_000
    assert peak < 5_000_000


@pytest.mark.parametrize("name", ["metrics.jsonl", "models", "checkpoints"])
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str, kind: str) -> None:
    begun(tmp_path / "run").close()
    outside = tmp_path / "outside"
    if name == "metrics.jsonl":
        (tmp_path / "run" / name).rename(outside)
    else:
        outside.mkdir()
    if kind == "link":
        (tmp_path / "run" / name).symlink_to(outside)
    else:
        os.mkfifo(tmp_path / "run" / name)
    before = outside.read_bytes() if outside.is_file() else None
    with pytest.raises(UserError, match=f"{name}.* is a {kind}"):
        RunDirectory.reopen(tmp_path / "run", 1)
    assert (list(outside.iterdir()) == []) if before is None else (outside.read_bytes() == before)


def test_a_file_of_two_names_is_not_appended_to(tmp_path: Path) -> None:
    begun(tmp_path / "run").close()
    os.link(tmp_path / "run" / "metrics.jsonl", tmp_path / "backup")
    with pytest.raises(UserError, match="has other names"):
        RunDirectory.reopen(tmp_path / "run", 1)


def test_a_run_is_taken_through_a_link_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    begun(tmp_path / "near" / "run").close()
    assert (tmp_path / "far" / "run" / "config.yaml").is_file()


@pytest.mark.parametrize("env_id", ["gymnax/CartPole-v1", "a:B-v0", "\x1b[2J/../..", "x" * 5000])
def test_new_folders_are_named_after_any_environment(tmp_path: Path, env_id: str) -> None:
    config = Config(env=Config().env.__class__(id=env_id))
    path = default_directory(config, tmp_path)
    assert path.parent == tmp_path
    assert path.name.isprintable()
    path.mkdir()


def test_the_last_row_can_be_amended(tmp_path: Path) -> None:
    store = begun(tmp_path / "run", 2)
    store.amend({"update": 2, "callback/x": 5.0})
    store.append([{"update": 3}])
    store.amend({"update": 3, "callback/x": 7.0})
    store.close()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"update": 1}, {"update": 2, "callback/x": 5.0}, {"update": 3, "callback/x": 7.0}]
    RunDirectory.reopen(tmp_path / "run", 3).close()
