"""MLflow has what `metrics.jsonl` has, once, whatever happens on the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

import probes
from killed import SETTINGS
from proximo import PPOAgent, PPOTrainer, run_multiple_experiments, settings
from proximo.cli.common import app
from proximo.config import Config
from proximo.errors import UserError
from proximo.run_dir.directory import RunDirectory
from proximo.run_dir.read import best_of, list_runs, read_config
from proximo.tracking import process
from proximo.tracking.facts import flat, safe_name
from proximo.tracking.feed import PAUSE, Choice, Feeder, alone, keep_feeding, period, sync
from proximo.tracking.mlflow import MAX_METRICS, MlflowTracker, batches
from proximo.tracking.tracker import in_words, is_unreached
from proximo.tracking.ui import runs_page

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own, in the tests that import it here
ENV = "gymnax/CartPole-v1"
SHORT = SETTINGS | {"eval_frequency": 25, "num_checkpoints": 2}
CACHE = Path(__file__).parent.parent / ".pytest_cache"


@pytest.fixture(autouse=True)
def kept_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty database is made once, and not in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def train(path: Path, updates: int = 45, callback: Any = None, **keywords: Any) -> list[str]:
    """A short run, and what it said."""
    notes = probes.Notes()
    given: dict[str, Any] = SHORT | {"total_timesteps": 64 * updates} | keywords
    PPOTrainer(ENV, out=path, preset=False, console=notes, **given).train(callback)
    return notes.said


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def due(rows: list[dict[str, Any]]) -> list[Any]:
    choice = Choice(every=10)
    return [part for row in rows if (part := row if row is rows[-1] else choice.due(row))]


def set_elapsed(path: Path, seconds: float) -> None:
    """The run as if each update had taken so long."""
    rows = [row | {"time/elapsed": seconds * row["update"]} for row in rows_of(path)]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri, uri)


def uri_of(path: Path) -> str:
    return str(json.loads((path / "mlflow.json").read_text())["uri"])


def stored(path: Path) -> Any:
    """The run as MLflow has it."""
    return client(uri_of(path)).get_run(json.loads((path / "mlflow.json").read_text())["run_id"])


def histories(path: Path) -> dict[str, list[tuple[int, float]]]:
    """All that MLflow has of each metric: (step, value), in the order of steps."""
    run = stored(path)
    every = {name: client(uri_of(path)).get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: sorted((metric.step, metric.value) for metric in history) for name, history in every.items()}


def assert_complete(path: Path, rows: list[dict[str, Any]] | None = None) -> None:
    """Exactly the rows that are due, each once, with their steps."""
    held, rows = histories(path), rows or due(rows_of(path))
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                expected.setdefault(name, []).append((row["step"], value))
    assert {name: history for name, history in held.items() if not name.startswith(("final/", "result/"))} == expected


@pytest.fixture(scope="module")
def tracked(
    tmp_path_factory: pytest.TempPathFactory, with_pictures: Callable[[], contextlib.AbstractContextManager[None]]
) -> Path:
    """A run that was tracked as users' are, from a process of its own."""
    path = tmp_path_factory.mktemp("tracked") / "runs" / "first"
    with pytest.MonkeyPatch.context() as patch, with_pictures():
        patch.setenv(process.SWITCH, "1")
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        patch.setattr(process, "PATIENCE", 60.0)
        assert train(path) == []
    return path


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2.7 s, of which updates 1, 20, 25, 40 and 45 are due."""
    path = tmp_path_factory.mktemp("untracked") / "runs" / "run"
    train(path)
    set_elapsed(path, 0.03)
    return path


@pytest.fixture
def copy(untracked: Path, tmp_path: Path) -> Path:
    return shutil.copytree(untracked, tmp_path / "runs" / "run")


def test_a_run_is_fed_from_its_start_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sender:
        sent, address = 0, ""

        def __init__(self) -> None:
            self.did: list[str] = []

        def feed(self) -> None:
            self.did.append("feed")

        def finish(self) -> None:
            self.did.append("finish")

    monkeypatch.setattr("proximo.tracking.feed.say", dict)
    for words, did in (([b"end"], ["finish"]), ([None, b"end"], ["feed", "finish"])):
        waited: list[float] = []
        left, sender = list(words), Sender()

        def told(seconds: float, waited: list[float] = waited, left: list[Any] = left) -> Any:
            waited.append(seconds)
            return left.pop(0)

        monkeypatch.setattr("proximo.tracking.feed.told", told)
        feeder: Any = sender
        keep_feeding(feeder)
        assert waited[0] == 0.0
        assert sender.did == did


@pytest.mark.slow
def test_rows_are_sent_at_once_when_training_ends_and_the_run_does_not_yet(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(process.SWITCH, "1")
    notes: list[str] = []
    one = process.make_tracker(read_config(copy), copy, notes.append)
    assert isinstance(one, process.TrackerProcess)

    def wait_for(update: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while one._sent != update and time.monotonic() < until:
            time.sleep(0.1)
        assert one._sent == update

    with contextlib.closing(one):
        one.start()
        wait_for(40, 60)  # the last that is due before the end
        assert stored(copy).info.status == "RUNNING"
        last = rows_of(copy)[-1]
        with (copy / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(last | {"update": 50, "time/elapsed": last["time/elapsed"] + 10}) + "\n")
        one.hurry()
        wait_for(50, PAUSE - 1.5)
    assert stored(copy).info.status == "FINISHED"
    assert notes == []


# What MLflow has


@pytest.mark.slow
def test_metrics_are_those_of_the_rows_that_are_due(tracked: Path) -> None:
    assert {1, 25, 45} <= {row["update"] for row in due(rows_of(tracked))} <= {1, 10, 20, 25, 30, 40, 45}
    assert_complete(tracked)
    run = stored(tracked)
    history = client(uri_of(tracked)).get_metric_history(run.info.run_id, "update")
    elapsed = [metric.timestamp - run.info.start_time for metric in history]
    assert elapsed == [int(1000 * row["time/elapsed"]) for row in due(rows_of(tracked))]
    assert abs(run.info.start_time / 1000 - (tracked / "config.yaml").stat().st_mtime) < 1


@pytest.mark.slow
def test_parameters_are_all_settings(tracked: Path) -> None:
    params = stored(tracked).data.params
    assert params == flat(settings.to_mapping(read_config(tracked)))
    assert (params["ppo.gamma"], params["env.id"], params["stop.target_reward"]) == ("0.99", ENV, "null")
    assert params["network.hidden_sizes"] == "[16]"


@pytest.mark.slow
def test_tags_status_and_result(tracked: Path) -> None:
    run, result = stored(tracked), json.loads((tracked / "result.json").read_text())
    assert run.info.status == "FINISHED"
    assert run.data.tags["stop_reason"] == "budget"
    assert run.data.tags["preset"] == "no"
    assert run.data.tags["cpus"] == str(os.cpu_count())
    assert {"version.jax", "version.python", "version.proximo", "machine"} <= run.data.tags.keys()
    assert run.data.metrics["final/return_mean"] == result["final_eval"]["return_mean"]
    assert run.data.metrics["result/total_steps"] == 64 * 45
    assert client(uri_of(tracked)).get_experiment(run.info.experiment_id).name == ENV


@pytest.mark.slow
def test_the_last_and_the_best_checkpoint_are_there_unless_unwanted(tracked: Path, copy: Path) -> None:
    held = Path(stored(tracked).info.artifact_uri) / "checkpoints"
    last = f"step_{64 * 45:012}.safetensors"
    assert {file.name for file in held.iterdir()} == {last, "best.safetensors"}
    assert (held / last).read_bytes() == (tracked / "checkpoints" / last).read_bytes()
    config = read_config(copy)
    sync(copy, replace(config, track=replace(config.track, checkpoints=False)))
    assert not (Path(stored(copy).info.artifact_uri) / "checkpoints").exists()


@pytest.mark.slow
def test_the_store_stands_beside_the_run(tracked: Path) -> None:
    runs = tracked.parent
    assert {file.name for file in runs.iterdir()} == {"first", "mlflow.db", "mlflow-artifacts"}
    held = Path(stored(tracked).info.artifact_uri)
    assert held.is_relative_to(runs / "mlflow-artifacts")
    ours = {file.relative_to(tracked) for name in ("models", "plots") for file in (tracked / name).iterdir()}
    ours |= {Path("config.yaml"), Path("result.json")}
    sent = {file.relative_to(held) for file in held.rglob("*") if file.is_file()}
    assert {file for file in sent if file.parts[0] != "checkpoints"} == ours
    for file in ours:
        assert (held / file).read_bytes() == (tracked / file).read_bytes()


@pytest.mark.slow
def test_pyfunc_acts_as_the_agent(tracked: Path) -> None:
    import mlflow

    known = client(uri_of(tracked)).search_logged_models([stored(tracked).info.experiment_id])
    model = mlflow.pyfunc.load_model(known[0].artifact_location)
    agent = PPOAgent.load(tracked / "models" / "final_actor.safetensors")
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs), agent.act(obs))
    assert model.predict(obs[0]) == agent.act(obs[0])
    assert len(known) == 1


@pytest.mark.slow
def test_sync_has_nothing_to_add(tracked: Path) -> None:
    before = histories(tracked)
    sync(tracked, read_config(tracked))
    assert histories(tracked) == before
    assert len(client(uri_of(tracked)).search_logged_models([stored(tracked).info.experiment_id])) == 1


def held_updates(path: Path) -> list[int]:
    return [int(value) for _, value in histories(path)["update"]]


@pytest.mark.parametrize(
    ("seconds", "updates"),
    [
        (0.001, [1, 25, 45]),  # in less than half a second: the first, the evaluation, the last
        (0.03, [1, 20, 25, 40, 45]),  # 0.03; 0.6; 0.75; 1.2; 1.35 s
        (0.5, [1, 10, 20, 25, 30, 40, 45]),
    ],
)
def test_fast_runs_send_few_rows(copy: Path, seconds: float, updates: list[int]) -> None:
    set_elapsed(copy, seconds)
    sync(copy, read_config(copy))
    assert held_updates(copy) == updates
    assert_complete(copy)


def test_failures_at_any_moment_leave_nothing_out_and_nothing_twice(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proximo.run_dir.read.MOST_BYTES", 10_000)
    send, turns = MlflowTracker.rows, iter(range(1000))

    def failing(self: Any, rows: list[dict[str, Any]]) -> None:
        turn = next(turns) % 4
        if turn == 2:
            raise ConnectionError("before it arrived")
        send(self, rows)
        if turn == 3:
            raise ConnectionError("before it was answered")

    monkeypatch.setattr(MlflowTracker, "rows", failing)
    config, failures = read_config(copy), 0
    feeder = Feeder(MlflowTracker(copy, config), copy, config)
    while True:
        try:
            feeder.finish()
            break
        except ConnectionError:
            failures += 1
    assert failures > 5
    assert held_updates(copy) == [1, 20, 25, 40, 45]
    assert_complete(copy)


# Runs that stop and go on


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_mlflow(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run"
    stop = lambda metrics: os.kill(os.getpid(), signal.SIGINT) if metrics["update"] == 23 else None  # noqa: E731
    train(path, callback=probes.EachUpdate(stop))
    sync(path, read_config(path))
    assert (stored(path).info.status, stored(path).data.tags["stop_reason"]) == ("KILLED", "interrupted")
    first = stored(path).info.run_id
    PPOTrainer.resume(path, steps=64 * 30).train()
    sync(path, read_config(path))
    run = stored(path)
    assert (run.info.run_id, run.info.status) == (first, "FINISHED")
    assert run.data.tags["changed.train.total_timesteps"] == str(64 * 53)
    rows = rows_of(path)
    assert_complete(path, sorted([*due(rows), rows[22]], key=lambda row: row["update"]))
    final = histories(path)["result/updates"]
    assert final == [(64 * 23, 23.0), (64 * 53, 53.0)]


def test_rows_that_are_made_again_are_not_sent_again(copy: Path) -> None:
    rows, file = (copy / "metrics.jsonl").read_bytes(), copy / "metrics.jsonl"
    (copy / "result.json").rename(copy / "later")
    file.write_bytes(b"".join(rows.splitlines(keepends=True)[:37]))
    sync(copy, read_config(copy))
    assert stored(copy).info.status == "KILLED"
    assert held_updates(copy) == [1, 20, 25]
    file.write_bytes(rows)
    (copy / "later").rename(copy / "result.json")
    sync(copy, read_config(copy))
    assert_complete(copy)


@pytest.mark.slow
def test_what_a_killed_training_leaves_is_sent(copy: Path) -> None:
    """The process that feeds MLflow sees the trainer go."""
    (copy / "result.json").unlink()
    command = [sys.executable, "-m", "proximo.tracking.feed", str(copy), process.MLFLOW]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) == {"done": True, "sent": 40}
    assert stored(copy).info.status == "KILLED"


def test_a_run_that_is_gone_from_mlflow_is_sent_anew(copy: Path) -> None:
    sync(copy, read_config(copy))
    first = stored(copy).info.run_id
    client(uri_of(copy)).delete_run(first)
    sync(copy, read_config(copy))
    assert stored(copy).info.run_id != first
    assert_complete(copy)
    assert (Path(stored(copy).info.artifact_uri) / "config.yaml").is_file()


def test_an_answer_that_was_lost_begins_no_second_run(copy: Path) -> None:
    sync(copy, read_config(copy))
    memory = json.loads((copy / "mlflow.json").read_text())
    run = memory.pop("run_id")
    (copy / "mlflow.json").write_text(json.dumps(memory))
    sync(copy, read_config(copy))
    assert stored(copy).info.run_id == run
    assert_complete(copy)


@pytest.mark.slow
def test_runs_and_store_can_be_moved_together(copy: Path, tmp_path: Path) -> None:
    sync(copy, read_config(copy))
    run = stored(copy).info.run_id
    moved = (copy.parent.rename(tmp_path / "moved")) / "run"
    sync(moved, read_config(moved))
    assert uri_of(moved) == f"sqlite:///{tmp_path / 'moved' / 'mlflow.db'}"
    assert stored(moved).info.run_id == run


def test_only_one_process_feeds(copy: Path) -> None:
    with alone(copy, wait=False), pytest.raises(UserError, match="by its own training"):
        sync(copy, read_config(copy))


# The end


class Killed(BaseException):
    """In the place of a signal that cannot be caught."""


def drawing(seen: list[bool], end: Any = None) -> Callable[..., list[str]]:
    """In the place of `write_plots`: draws one picture, and notes whether the run had its result before."""

    def draw(path: Path, *_: Any) -> list[str]:
        seen.append((path / "result.json").exists())
        if end is not None:
            raise end
        (path / "plots").mkdir(exist_ok=True)
        (path / "plots" / "learning_curve.png").write_bytes(b"a picture")
        return []

    return draw


def test_the_result_is_the_last_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes it for the end, as experiments and MLflow do, finds the pictures; a resume draws them."""
    path = tmp_path / "runs" / "run"
    seen: list[bool] = []
    monkeypatch.setattr("proximo.train.finish.write_plots", drawing(seen, Killed()))
    with pytest.raises(Killed):
        train(path, 2)
    assert not (path / "result.json").exists()
    sync(path, read_config(path))
    assert stored(path).info.status == "KILLED"
    monkeypatch.setattr("proximo.train.finish.write_plots", drawing(seen))
    PPOTrainer.resume(path).train()
    assert seen == [False, False]
    assert json.loads((path / "result.json").read_text())["updates"] == 2
    sync(path, read_config(path))
    assert stored(path).info.status == "FINISHED"
    assert (Path(stored(path).info.artifact_uri) / "plots" / "learning_curve.png").is_file()


def as_if_of(path: Path, env_id: str) -> dict[str, Any]:
    """The run as if it had been trained on another environment, and converged."""
    values = settings.to_mapping(read_config(path))
    values["env"]["id"] = env_id
    (path / "config.yaml").write_text(json.dumps(values))
    result: dict[str, Any] = json.loads((path / "result.json").read_text()) | {"env": env_id, "converged": True}
    (path / "result.json").write_text(json.dumps(result))
    return result


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("pettingzoo/mpe2.simple_spread_v3", "pettingzoo-mpe2-simple_spread_v3"),
        ("pkg.envs:Thing-v0", "pkg-envs-Thing-v0"),
        ("It's 100%.v0", "It-s-100-v0"),
    ],
)
def test_environments_of_every_name_are_registered(copy: Path, env_id: str, name: str) -> None:
    """MLflow forbids / : . % and quotation marks in the names of models."""
    result = as_if_of(copy, env_id)
    sync(copy, read_config(copy))
    run = stored(copy)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["final/return_mean"] == result["final_eval"]["return_mean"]
    best = client(uri_of(copy)).get_model_version_by_alias(name, "best")
    assert best.run_id == run.info.run_id


def test_a_run_ends_in_mlflow_even_if_its_model_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = as_if_of(copy, ENV)
    with monkeypatch.context() as patch:
        patch.setattr("proximo.tracking.mlflow.safe_name", lambda name: "a.name")
        with pytest.raises(UserError, match=r"did not accept .*: Invalid model name \('a.name'\)"):
            sync(copy, read_config(copy))
    run = stored(copy)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["final/return_mean"] == result["final_eval"]["return_mean"]
    sync(copy, read_config(copy))
    assert client(uri_of(copy)).get_model_version_by_alias("gymnax-CartPole-v1", "best").run_id == run.info.run_id
    assert_complete(copy)


def test_names_that_mlflow_forbids_are_changed() -> None:
    assert flat({"agents": {"members": {"wolf+hare": ["a"]}}}) == {"agents.members.wolf-hare": '["a"]'}
    row = {"update": 1, "step": 1, "time/elapsed": 0.0, "group/wolf+hare/return": 2.0, "a b:c/d.e-f_g": 1.0}
    (batch,) = batches([row])
    assert {name for name, *_ in batch} == {
        *("update", "step", "time/elapsed", "group/wolf-hare/return", "a b:c/d.e-f_g"),
    }


def test_a_new_database_knows_only_its_own_folder(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a copy of a template, which MLflow made in whatever folder the user was then."""
    for name in ("cache", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    sync(copy, read_config(copy))
    default = client(uri_of(copy)).get_experiment("0")
    assert default.artifact_location == str(copy.parent / "mlflow-artifacts" / "0")
    assert str(tmp_path / "elsewhere").encode() not in (copy.parent / "mlflow.db").read_bytes()
    assert not (tmp_path / "elsewhere" / "mlruns").exists()


def heard_of(*lines: Any) -> list[str]:
    """What the trainer says when the feeding process says this."""
    notes: list[str] = []
    one = process.TrackerProcess(Path("runs/run"), notes.append)
    one._listen([json.dumps(line).encode() for line in ({"uri": "sqlite:///x.db"}, *lines)])
    return notes


def test_trouble_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heard_of({"trouble": "connection refused", "reached": False, "sent": 0}) == [
        "MLflow at sqlite:///x.db cannot be reached (connection refused). Training continues; what is missing is "
        "sent when it can be, or by `proximo sync runs/run`."
    ]
    assert heard_of({"trouble": "Invalid model name ('a.b')", "reached": True, "sent": 3}) == [
        "MLflow at sqlite:///x.db refused some data: Invalid model name ('a.b'). Training continues; "
        "`proximo sync runs/run` tries again."
    ]
    said = []
    monkeypatch.setattr("proximo.tracking.feed.say", lambda **facts: said.append(facts))
    monkeypatch.setattr("proximo.tracking.feed.told", lambda seconds: b"end")
    monkeypatch.setattr("proximo.tracking.feed.time.sleep", lambda seconds: None)

    class Sender:
        sent, address = 7, ""
        errors: ClassVar = [ConnectionError("Connection refused"), ValueError("Invalid model name ('a.b')")]

        def feed(self) -> None:
            raise AssertionError("it is only asked to finish")

        def finish(self) -> None:
            if self.errors:
                raise self.errors.pop(0)

    keep_feeding(Sender())
    assert said == [
        {"trouble": "connection refused", "reached": False, "sent": 7},
        {"trouble": "Invalid model name ('a.b')", "reached": True, "sent": 7},
        {"done": True, "sent": 7},
    ]


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("API request to http://h/api failed with exception HTTPConnectionPool(...): Max retries exceeded", False),
        ("(sqlite3.OperationalError) database is locked", False),
        ("Invalid model name ('a.b') provided.", True),
        ("No space left on device", True),
    ],
)
def test_what_was_not_answered_is_told_from_what_was_refused(text: str, reached: bool) -> None:
    assert is_unreached(Exception(text)) is not reached


@pytest.mark.filterwarnings("default")
def test_python_users_are_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console of the command line says it; without one it is a warning."""

    def troubled(config: Config, path: Path, note: Callable[[str], None]) -> Any:
        note("MLflow lacks this run.")
        return process.NoTracker()

    monkeypatch.setattr("proximo.train.active_run.make_tracker", troubled)
    monkeypatch.setattr("proximo.experiment.runner.make_tracker", troubled)
    given: dict[str, Any] = SHORT | {"total_timesteps": 64, "preset": False}
    with pytest.warns(UserWarning, match=r"MLflow lacks this run\."):
        PPOTrainer(ENV, out=tmp_path / "run", **given).train()
    with pytest.warns(UserWarning, match=r"MLflow lacks this run\."):
        run_multiple_experiments(ENV, seeds=1, out=tmp_path / "e", **given)


# Off


@pytest.mark.slow
def test_turned_off_it_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process.SWITCH, "1")
    assert train(tmp_path / "runs" / "run", 2, enable_mlflow=False) == []
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["run"]
    assert not (tmp_path / "runs" / "run" / "mlflow.json").exists()


@pytest.mark.parametrize(
    ("switch", "wanted", "kind"),
    [
        *((None, True, process.TrackerProcess), ("1", True, process.TrackerProcess)),
        *(("0", True, process.NoTracker), ("off", True, process.NoTracker), ("1", False, process.NoTracker)),
    ],
)
def test_it_is_on_unless_it_is_turned_off(
    switch: str | None, wanted: bool, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(process.SWITCH)
    if switch is not None:
        monkeypatch.setenv(process.SWITCH, switch)
    config = settings.build(settings.from_keywords({"enable_mlflow": wanted}))
    assert type(process.make_tracker(config, tmp_path, print)) is kind


# The registry


def test_the_best_of_the_converged_is_marked(tmp_path: Path) -> None:
    path, runs = tmp_path / "runs" / "first", tmp_path / "runs"
    train(path, target_reward=1.0, convergence_window=2, early_stopping_patience=1)
    result = json.loads((path / "result.json").read_text())
    assert result["converged"]
    (runs / "mlflow.db").unlink(missing_ok=True)
    for name, score in (("low", 10.0), ("high", 30.0), ("middle", 20.0)):
        other = shutil.copytree(path, runs / name)
        result["final_eval"]["return_mean"] = score
        (other / "result.json").write_text(json.dumps(result))
        sync(other, read_config(other))
        sync(other, read_config(other))
    registry = client(uri_of(runs / "high"))
    versions = registry.search_model_versions("name = 'gymnax-CartPole-v1'")
    assert sorted(int(version.version) for version in versions) == [1, 2, 3]
    best = registry.get_model_version_by_alias("gymnax-CartPole-v1", "best")
    assert (best.tags["return_mean"], best.run_id) == ("30.0", stored(runs / "high").info.run_id)
    assert (Path(best.source) / "MLmodel").is_file()


# Servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        where = f"sqlite:///{self.folder / 'server.db'}"
        if not (self.folder / "server.db").exists():
            shutil.copy(next(CACHE.glob("proximo/mlflow-*.db")), self.folder / "server.db")
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self.port)]
        command += ["--backend-store-uri", where, "--artifacts-destination", str(self.folder / "files")]
        surroundings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        self.process = subprocess.Popen(
            command,
            env=os.environ | surroundings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=self.folder,
        )
        deadline = time.monotonic() + 60
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", self.port)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        return self

    def __exit__(self, *_: Any) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait_for_rows(path: Path) -> None:
    """Until MLflow has what is due."""
    deadline, choice = time.monotonic() + 60, Choice(every=10)
    number = max(row["update"] for row in rows_of(path) if choice.due(row))
    while not (path / "mlflow.json").exists() or "run_id" not in json.loads((path / "mlflow.json").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while stored(path).data.metrics.get("update", 0) < number:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_and_comes_back(
    tracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(process.SWITCH, "1")
    monkeypatch.setattr(process, "PATIENCE", 60.0)
    path, server = tmp_path / "runs" / "run", Server(tmp_path)
    server.__enter__()

    def disturb(metrics: dict[str, Any]) -> None:
        if metrics["update"] == 21:
            wait_for_rows(path)
            server.__exit__()
        if metrics["update"] == 35:
            time.sleep(4)  # long enough to notice
            server.__enter__()
            wait_for_rows(path)

    try:
        said = train(path, 60, probes.EachUpdate(disturb), tracking_uri=server.uri, eval_frequency=10)
        assert [sentence.partition(" (")[0] for sentence in said] == [
            f"MLflow at {server.uri} cannot be reached",
            "MLflow has everything now.",
        ]
        assert_complete(path)
        assert stored(path).info.status == "FINISHED"
    finally:
        server.__exit__()
    assert not (tmp_path / "runs" / "mlflow.db").exists()


@pytest.mark.slow
def test_a_server_that_is_down_from_the_start_and_a_sync_later(
    tracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(process.SWITCH, "1")
    path, server = tmp_path / "runs" / "run", Server(tmp_path)
    said = train(path, target_reward=1.0, convergence_window=2, early_stopping_patience=1, tracking_uri=server.uri)
    assert f"MLflow at {server.uri} cannot be reached (connection refused)" in said[0]
    assert said[1:] == [f"MLflow is missing this run (connection refused); `proximo sync {path}` sends it."]
    with pytest.raises(UserError, match=r"did not accept .*: connection refused"):
        sync(path, read_config(path))
    with server:
        sync(path, read_config(path))
        assert_complete(path)
        run = stored(path)
        assert run.info.status == "FINISHED"
        held = client(server.uri).list_artifacts(run.info.run_id, "models")
        assert "models/final_actor.safetensors" in [file.path for file in held]
        best = client(server.uri).get_model_version_by_alias("gymnax-CartPole-v1", "best")
        assert best.run_id == run.info.run_id


@pytest.mark.slow
def test_a_server_that_hangs_delays_nothing(untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process.SWITCH, "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        uri = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        said = train(tmp_path / "runs" / "run", tracking_uri=uri)
    assert f"MLflow at {uri} cannot be reached (no answer in time). Training continues" in said[0]
    assert "`proximo sync" in said[1]
    result = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    calm = json.loads((untracked / "result.json").read_text())
    assert result["stop_reason"] == "budget"
    assert result["wall_seconds"] < calm["wall_seconds"] + 20, "training waits for nobody"


# Commands


def test_commands(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy.parent.parent)
    done = CliRunner().invoke(app, ["sync", "run"])
    assert done.exit_code == 0, done.output
    assert "has everything of runs/run, up to update 45." in " ".join(done.output.split())
    assert_complete(copy)
    listed = json.loads(CliRunner().invoke(app, ["runs", "--json", "--best", ENV]).output)
    assert [(run["run"], run["env"], run["state"]) for run in listed] == [("runs/run", ENV, "complete")]
    shown = CliRunner().invoke(app, ["runs"]).output
    assert all(word in shown for word in ("environment", "2,880", "complete", "ago"))


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    both = CliRunner().invoke(app, ["train", ENV, "--mlflow", "http://host", "--no-mlflow"])
    assert "cannot be used together" in str(both.exception)
    assert "There is no runs/mlflow.db yet" in str(CliRunner().invoke(app, ["ui"]).exception)
    assert "There are no runs" in CliRunner().invoke(app, ["runs"]).output


CHROMIUM = shutil.which("chromium")


def browse(*args: Any) -> str:
    """What the browser prints of a page once its scripts have run."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@contextlib.contextmanager
def interface(tracked: Path) -> Iterator[str]:
    """The address of `proximo ui` on the store of a run, while it is open."""
    port = free_port()
    command = [sys.executable, "-c", "from proximo.cli import main; main()", "ui", "--port", str(port)]
    process = subprocess.Popen(command, cwd=tracked.parent.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.readline().decode()
    page = re.fullmatch(rf"http://127\.0\.0\.1:{port}/(\S+) shows the runs in runs; Ctrl-C stops it\.\n", said)
    assert page
    assert page[1] == f"#/experiments/{json.loads((tracked / 'mlflow.json').read_text())['experiment_id']}/runs"
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert (rest, process.returncode) == (b"", 0)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)), "the server is gone too"


@pytest.mark.slow
def test_the_interface_opens_shows_the_run_and_ends(tracked: Path) -> None:
    memory = json.loads((tracked / "mlflow.json").read_text())
    with interface(tracked) as address:
        with urllib.request.urlopen(address, timeout=20) as page:
            assert b"<html" in page.read()
        if not CHROMIUM:
            pytest.skip("the page itself needs Chromium: apt-get install chromium")
        seen = browse("--dump-dom", f"{address}#/experiments/{memory['experiment_id']}/runs/{memory['run_id']}")
    for words in (tracked.name, "Finished", "loss/objective", "stop_reason"):
        assert words in seen


# Parts


def test_the_interface_opens_on_the_runs(tmp_path: Path) -> None:
    """Of one experiment its page, of several the one that compares them; none without runs, or that is deleted."""
    database = tmp_path / "mlflow.db"
    assert runs_page(database) == "", "there is none"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as opened:
        opened.execute("CREATE TABLE experiments (experiment_id INTEGER, lifecycle_stage TEXT)")
        opened.execute("CREATE TABLE runs (experiment_id INTEGER, lifecycle_stage TEXT)")
        opened.execute("INSERT INTO experiments VALUES (0, 'active'), (1, 'active'), (2, 'active'), (3, 'deleted')")
        assert runs_page(database) == ""
        opened.execute("INSERT INTO runs VALUES (1, 'active'), (1, 'active'), (2, 'deleted'), (3, 'active')")
        assert runs_page(database) == "#/experiments/1/runs"
        opened.execute("INSERT INTO runs VALUES (2, 'active')")
        assert runs_page(database) == "#/compare-experiments/s?experiments=%5B%221%22%2C%222%22%5D"


def test_a_row_is_chosen_by_its_update_its_second_and_its_evaluation() -> None:
    rows = {  # update: elapsed, evaluated, what is due; with the periods of training from `period`
        1: (0.1, False, "all"),  # the first of all, in period 0
        4: (0.2, False, ""),
        5: (0.3, True, "evaluation"),
        6: (0.4, True, ""),
        7: (0.6, False, ""),  # not a fourth update
        8: (0.7, False, "all"),  # period 1
        12: (90.0, False, "all"),  # period 83
        16: (91.2, False, ""),
        17: (91.3, True, "evaluation"),
        20: (92.1, False, "all"),  # period 84
        21: (1000.0, True, "all"),  # period 222
        22: (1001.0, True, ""),
        24: (1002.0, False, ""),
        28: (1008.0, False, "all"),  # period 223
    }
    assert [period(seconds) for seconds in (0.0, 0.5, 0.6, 90.0, 92.0, 570.0, 1000.0)] == [0, 0, 1, 83, 84, 179, 222]
    made = [
        {"update": update, "step": 64 * update, "time/elapsed": elapsed, "loss/actor": 0.5}
        | ({"eval/episodes": 3} if evaluated else {})
        for update, (elapsed, evaluated, _) in rows.items()
    ]
    expected = [
        {"all": row, "evaluation": {name: row[name] for name in row if name != "loss/actor"}, "": {}}[due]
        for row, (*_, due) in zip(made, rows.values(), strict=True)
    ]
    choice = Choice(every=4)
    assert [choice.due(row) for row in made] == expected
    assert [choice.due(row) for row in made] == expected, "read from the start again, as after a resume"


def test_a_log_frequency_that_is_given_is_kept_to() -> None:
    rows = [{"update": n, "step": n, "time/elapsed": 0.001 * n, "loss/actor": 0.5} for n in range(1, 8)]
    rows[4]["eval/episodes"] = 3
    assert [Choice(1, thinned=False).due(row) for row in rows] == rows
    every = Choice(3, thinned=False)
    assert [row["update"] for row in rows if every.due(row) == row] == [1, 3, 5, 6], "and the fifth has an evaluation"


def test_batches_hold_whole_rows() -> None:
    rows = [
        {"update": n, "step": 8 * n, "time/elapsed": 0.5 * n, "none": None, **{f"m{i}": float(i) for i in range(300)}}
        for n in range(1, 9)
    ]
    made = list(batches(rows))
    assert [len(batch) for batch in made] == [909, 909, 606]
    assert all(batch[-1][0] == "update" for batch in made)
    assert made[0][-1] == ("update", 3.0, 1500, 24)
    wide = {"update": 1, "step": 1, "time/elapsed": 0.0} | {f"m{i}": 1.0 for i in range(2500)}
    parts = list(batches([wide]))
    assert [len(part) for part in parts] == [MAX_METRICS, MAX_METRICS, 503]
    assert [name for part in parts for name, *_ in part].index("update") == 2502


def test_words() -> None:
    assert in_words(Exception("API request failed: HTTPConnectionPool: Connection refused")) == "connection refused"
    assert in_words(Exception("http://me:secret@host is odd\nand more")) == "http://***@host is odd"
    assert safe_name("gymnax/CartPole-v1") == "gymnax-CartPole-v1"
    assert flat({"track": {"tracking_uri": "http://me:secret@host", "a": None}, "b": [1]}) == {
        "track.tracking_uri": "http://***@host",
        "track.a": "null",
        "b": "[1]",
    }


def test_runs_are_listed_in_every_state(untracked: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("whole", "cut", "interrupted", "alive", "damaged"):
        shutil.copytree(untracked, runs / name)
    (runs / "cut" / "result.json").unlink()
    with (runs / "cut" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"update": 46, "st')
    result = json.loads((untracked / "result.json").read_text()) | {"stop_reason": "interrupted", "final_eval": None}
    (runs / "interrupted" / "result.json").write_text(json.dumps(result | {"final_return": 1.5}))
    (runs / "damaged" / "config.yaml").write_text("[")
    store = RunDirectory.reopen(runs / "alive", 45)
    found = {run.path.name: run for run in list_runs(runs)}
    store.close()
    assert {name: run.status.state for name, run in found.items()} == {
        "whole": "complete",
        "cut": "stopped without an end",
        "interrupted": "interrupted",
        "alive": "running",
    }
    assert found["interrupted"].status.episode_return == 1.5
    whole = json.loads((untracked / "result.json").read_text())
    assert found["whole"].status.episode_return == whole["final_eval"]["return_mean"]
    assert {run.status.steps for run in found.values()} == {64 * 45}
    others = [run for run in found.values() if run.path.name in ("whole", "interrupted")]
    assert [run.path.name for run in best_of(others, ENV)] == ["whole"]
    with pytest.raises(UserError, match="No run of Nowhere"):
        best_of(others, "Nowhere")


def test_every_tracking_setting_has_its_place() -> None:
    assert Config().track.mlflow
    assert settings.from_keywords({"enable_mlflow": False}) == {"track.mlflow": False}
