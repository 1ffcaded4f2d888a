"""A run on a node: where it is trained, what is sent home of it, and what is left. The process is a stand-in."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proximo.fleet import node
from proximo.fleet.node import News, RunOnNode, describe_difference
from proximo.train.interrupt import Interrupt


class Process:
    """Writes a row and a note, waits for `go`, and fails."""

    def __init__(self, cores: list[int], log: Path):
        self.cores, self.closed, self.go = cores, False, threading.Event()
        log.write_text("printed\n" * 10_000)
        started.append(self)

    def run(self, job: dict[str, Any], note: Callable[[str], None], told: Interrupt) -> dict[str, Any]:
        self.job, self.told = job, told
        (Path(job["path"]) / "metrics.jsonl").write_text('{"step": 1}\n')
        note(f"{job['path']} is slow.")
        self.go.wait()
        (Path(job["path"]) / "error.txt").write_text("it broke")
        return {"end": "failed", "sentence": f"It broke (see {job['path']}/error.txt)."}

    def close(self) -> None:
        self.closed = True


started: list[Process] = []
JOB = {"settings": {}, "path": "/home/me/runs/one", "packed": "", "trust": True}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RunOnNode:
    started.clear()
    monkeypatch.setattr(node, "Worker", Process)
    monkeypatch.setattr(node, "claim_cores", lambda count, held: list(range(count)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return RunOnNode()


def news_when(run: RunOnNode, there: Callable[[News], bool], received: int = 0) -> News:
    while not there(news := run.news(received)):
        time.sleep(0.01)
    return news


def test_it_is_trained_in_a_folder_of_the_node_and_told_of_as_at_home(run: RunOnNode, tmp_path: Path) -> None:
    run.start(JOB, {"metrics.jsonl": b"", "checkpoints/best.safetensors": b"b"}, 2, [str(tmp_path), "/nowhere"], False)
    first = news_when(run, lambda news: bool(news.notes))
    (process,) = started
    folder = Path(process.job["path"])
    assert (folder / "checkpoints" / "best.safetensors").read_bytes() == b"b"
    assert process.cores == [0, 1]
    assert sys.path[-1] == str(tmp_path)
    assert first.notes == ["/home/me/runs/one is slow."]
    assert first.end is None
    assert first.parcel is not None
    assert (first.parcel.rows, first.parcel.files) == (b'{"step": 1}\n', {})
    process.go.set()
    last = news_when(run, lambda news: news.end is not None, first.parcel.number)
    assert last.end == {"end": "failed", "sentence": "It broke (see /home/me/runs/one/error.txt)."}
    assert last.parcel is not None
    assert last.parcel.files == {"error.txt": b"it broke"}
    assert last.log == "printed\n" * 1250  # the last 10,000 bytes
    run.leave()
    assert process.closed
    assert not folder.parent.exists()


def test_a_folder_that_all_see_is_used_as_it_is(run: RunOnNode, tmp_path: Path) -> None:
    run.start(JOB | {"path": str(tmp_path)}, None, 1, [], False)
    news = news_when(run, lambda news: bool(news.notes))
    assert news.parcel is None
    assert news.notes == [f"{tmp_path} is slow."]
    started[0].go.set()
    run.leave()


def test_a_checkpoint_is_asked_for_each_minute_where_the_settings_do_not(
    run: RunOnNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start(JOB, {"metrics.jsonl": b""}, 1, [], True)
    news_when(run, lambda news: bool(news.notes))
    told, now = started[0].told, time.monotonic()
    asked = []
    for seconds in (50, 61, 62, 121):
        monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=lambda after=seconds: now + after))
        run.news(0)
        asked.append(told.saves)
    assert asked == [0, 1, 1, 2]
    run.save()
    run.stop()
    assert (told.saves, told.signal) == (3, 15)
    started[0].go.set()
    run.leave()


def test_versions_that_differ_are_named() -> None:
    assert describe_difference({"jax": "1", "numpy": "2"}, {"jax": "1", "numpy": "2", "flax": "3"}) == ""
    assert describe_difference({"jax": "1", "flax": "2"}, {"jax": "0"}) == "jax 0 instead of 1, flax None instead of 2"
