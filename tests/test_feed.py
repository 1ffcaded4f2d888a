"""The process that feeds a tracker takes any that has the protocol, by its dotted path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proximo.config import Config
from proximo.run_dir.directory import RunDirectory
from proximo.tracking.feed import Choice


class Diary:
    """A tracker that writes down what it is told. The first time that it is opened, it fails."""

    last_update = 0
    address = "a diary"

    def __init__(self, path: Path, config: Config) -> None:
        self._file = path.parent / "diary.jsonl"
        self._env = config.env.id

    def _write(self, *entry: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def open(self, live: bool) -> None:
        first = not self._file.exists()
        self._write("open", self._env)
        if first:
            raise ConnectionError("Connection refused")

    def rows(self, rows: list[dict[str, Any]]) -> None:
        new = [row["update"] for row in rows if row["update"] > self.last_update]
        if new:
            self._write("rows", new)
            self.last_update = new[-1]

    def files(self, final: bool) -> None:
        self._write("files", final)

    def close(self, result: Any) -> None:
        self._write("close", result["stop_reason"])


@pytest.mark.slow
def test_a_tracker_of_ones_own_is_fed_by_its_dotted_path(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.begin(Config())
    directory.append([{"update": n, "step": 10 * n, "time/elapsed": 10.0 * n} for n in range(1, 26)])
    directory.finish({"stop_reason": "budget"})
    directory.close()
    command = [sys.executable, "-m", "proximo.tracking.feed", str(tmp_path / "run"), "test_feed:Diary"]
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        command, input=b"end\n", capture_output=True, env=os.environ | {"PYTHONPATH": places}, timeout=120, check=True
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0] == {"uri": "a diary"}
    assert said[1] == {"trouble": "connection refused", "reached": False, "sent": 0}
    assert said[-1] == {"done": True, "sent": 25}
    told = [json.loads(line) for line in (tmp_path / "diary.jsonl").read_text().splitlines()]
    # Updates 10 and 20 are due, the first always is, and the last at the end.
    assert told == [
        *(["open", "CartPole-v1"], ["open", "CartPole-v1"]),
        *(["rows", [1, 10, 20]], ["rows", [25]], ["files", True], ["close", "budget"]),
    ]


def test_rows_that_are_sent_for_their_evaluation_have_what_callbacks_returned() -> None:
    row = {"update": 7, "step": 70, "time/elapsed": 1.0, "eval/return_mean": 2.0, "callback/x": 3.0, "loss/total": 4.0}
    choice = Choice(10)
    choice.due({"update": 1, "step": 10, "time/elapsed": 1.0})
    assert choice.due(row) == {name: value for name, value in row.items() if name != "loss/total"}
