"""Callbacks: what they hear of a run, in which order, and what they can do about it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probes
from host_probes import Walk
from probes import Listener
from proximo import PPOAgent
from proximo.errors import UserError
from proximo.train.callbacks import Callbacks
from test_trainer import rows, trainer


@pytest.mark.slow
def test_callbacks_see_every_update_and_can_stop(tmp_path: Path) -> None:
    seen = []

    class Watcher:
        def log_training_step(self, metrics: dict[str, Any]) -> bool:
            seen.append(
                (metrics["update"], metrics["episode"], metrics["step_metrics"]["avg_reward"], metrics["eval_metrics"])
            )
            return bool(metrics["update"] < 6)

    calls = []
    result = trainer(tmp_path / "run").train(callback=[Watcher(), lambda metrics: calls.append(metrics["episode"])])
    assert [update for update, *_ in seen] == [1, 2, 3, 4, 5, 6]
    assert calls == list(range(1, result["episodes"] + 1)), "once for each episode"
    assert [update for update, *_, evaluated in seen if evaluated] == [4]
    assert seen[3][3]["episodes"] == 3
    assert seen[3][3]["avg_reward"] == seen[3][3]["return_mean"]
    assert (result["stop_reason"], result["updates"]) == ("callback", 6)
    with pytest.raises(UserError, match="int has neither"):
        trainer(tmp_path / "other").train(callback=3)


@pytest.mark.slow
def test_a_plain_callback_is_called_for_each_episode(tmp_path: Path) -> None:
    heard: list[Any] = []
    updates: list[dict[str, Any]] = []
    one = trainer(tmp_path / "run", env=probes.TruncatedForever(), num_envs=2, rollout_length=4, minibatch_size=8)
    one.train(callback=[heard.append, probes.EachUpdate(updates.append)])
    told = [(metrics["update"], metrics["episode"]) for metrics in heard]
    # Both environments end after 5 steps: in the updates 2, 3, 4 and 5 (steps 5, 10, 15, 20), not in 1 and 6.
    assert told[:9] == [(2, 1), (2, 2), (3, 3), (3, 4), (4, 5), (4, 6), (5, 7), (5, 8), (7, 9)]
    assert heard[0]["episode_metrics"] == {"return": 5.0, "length": 5, "success": False}
    assert f"{updates[0]['step_metrics']['avg_reward']:.2f}" == "nan", "nothing has ended yet"
    assert updates[5]["episode"] == 8


def test_the_last_update_is_told_of_with_the_final_evaluation(tmp_path: Path) -> None:
    heard: list[Any] = []
    result = trainer(tmp_path / "run", eval_frequency=0).train(callback=probes.EachUpdate(heard.append))
    assert [metrics["eval_metrics"] is not None for metrics in heard] == [False] * 9 + [True]
    final = heard[-1]["eval_metrics"]
    assert final["avg_reward"] == result["final_eval"]["return_mean"]
    assert {"std_reward", "min_reward", "max_reward", "avg_length"} <= final.keys()


def test_callbacks_hear_of_what_happens(tmp_path: Path) -> None:
    listener = Listener()
    trainer(tmp_path / "run", every_steps=320, every_seconds=None).train(callback=listener)
    assert listener.heard == [
        ("start", "run"),
        ("checkpoint", 0),
        ("evaluation", 3),
        ("checkpoint", 320),
        ("evaluation", 3),
        ("checkpoint", 640),
        ("evaluation", 3),
        ("end", 10),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("event", "updates"), [("start", 0), ("checkpoint", 0), ("evaluation", 4), ("end", 10)])
def test_any_callback_can_end_the_run(event: str, updates: int, tmp_path: Path) -> None:
    result = trainer(tmp_path / "run").train(callback=Listener(**{event: False}))
    assert (result["updates"], result["stop_reason"]) == (updates, "callback" if updates < 10 else "budget")


@pytest.mark.slow
def test_a_callback_that_raises_leaves_a_saved_run(tmp_path: Path) -> None:
    def broken(metrics: dict[str, Any]) -> None:
        if metrics["update"] == 3:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer(tmp_path / "run").train(callback=broken)
    assert len(rows(tmp_path / "run")) == 3
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stop_reason"] == "failed"
    assert PPOAgent.load(tmp_path / "run" / "models" / "final_actor.safetensors").act(np.zeros(4)) in (0, 1)


class Batches:
    """Hears of updates, some at a time, and of evaluations; `last` is the update at which it has enough."""

    def __init__(self, last: int = 10**9) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.last = last

    def on_updates(self, several: list[dict[str, Any]]) -> bool:
        self.batches.append(several)
        return bool(several[-1]["update"] < self.last)


@pytest.mark.slow
def test_updates_can_be_heard_of_some_at_a_time(tmp_path: Path) -> None:
    """200 updates without evaluations: the policy is judged every tenth, so chunks have up to ten of them."""
    long = {"total_timesteps": 64 * 200, "eval_frequency": 0, "num_checkpoints": 0}
    one = Batches()
    each: list[dict[str, Any]] = []
    trainer(tmp_path / "some", **long).train(callback=one)
    trainer(tmp_path / "each", **long).train(callback=probes.EachUpdate(each.append))
    assert 1 < max(map(len, one.batches)) <= 10
    heard = [metrics for several in one.batches for metrics in several]
    assert [metrics["update"] for metrics in heard] == list(range(1, 201))
    assert [timeless(metrics) for metrics in heard] == [timeless(metrics) for metrics in each]
    assert one.batches[-1][-1]["eval_metrics"] is not None, "the last is told of with the final evaluation"


def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    steps = metrics["step_metrics"]
    named = {name: value for name, value in steps.items() if not name.startswith("time/") and value == value}
    return metrics | {"step_metrics": named}


def test_who_hears_of_some_updates_at_a_time_can_end_the_run(tmp_path: Path) -> None:
    result = trainer(tmp_path / "run", total_timesteps=64 * 200).train(callback=Batches(last=20))
    assert result["stop_reason"] == "callback"
    assert 20 <= result["updates"] < 60


def test_each_update_is_made_by_itself_where_somebody_hears_of_each(tmp_path: Path) -> None:
    one = Batches()
    trainer(tmp_path / "run").train(callback=[one, probes.EachUpdate(len)])
    assert [len(several) for several in one.batches] == [1] * 10


class Returns:
    """Returns numbers wherever there is a row for them."""

    def log_training_step(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return {"twice": np.int64(2 * metrics["update"]), "unknown": float("nan")}

    def on_episode(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return {"number": metrics["episode"], "seven": metrics["episode_metrics"]["info"]["seven"]}

    def on_evaluation(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return {"played": metrics["episodes"]}


def test_what_callbacks_return_is_in_the_row_of_the_update(tmp_path: Path) -> None:
    """Episodes of 5 steps in 2 environments, 4 steps an update: two end in the updates 2, 3, 4 and 5, numbers 1 to 8.
    The last row has what was returned at the end, too."""
    env, few = probes.TruncatedForever(), {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8}
    run = trainer(tmp_path / "run", env=env, total_timesteps=48, track_info=["seven"], **few)
    run.train(callback=Returns())
    found = [{name: value for name, value in row.items() if name.startswith("callback/")} for row in rows(run.path)]
    assert [row["callback/twice"] for row in found] == [2, 4, 6, 8, 10, 12]
    assert [row["callback/unknown"] for row in found] == [None] * 6
    assert [row.get("callback/number") for row in found] == [None, 1.5, 3.5, 5.5, 7.5, None]
    assert [row.get("callback/seven") for row in found] == [None, 7, 7, 7, 7, None]
    assert [row.get("callback/played") for row in found] == [None, None, None, 3, None, 3]
    assert [row["info/seven"] for row in rows(run.path)] == [None, 7, 7, 7, 7, 7]


def test_what_cannot_be_written_is_refused() -> None:
    def told(*functions: Any, event: str = "on_episode") -> Callbacks:
        found = Callbacks([SimpleNamespace(**{event: function}) for function in functions])
        found.call(event, {})
        return found

    assert told(lambda _: {"a": 1}, lambda _: {"b": None}).take_returned() == {"callback/a": 1.0, "callback/b": None}
    with pytest.raises(UserError, match=r"A callback returned 'a': one\. It may return False"):
        told(lambda _: {"a": "one"})
    with pytest.raises(UserError, match="A callback returned 5: 1"):
        told(lambda _: {5: 1})
    with pytest.raises(UserError, match="Callbacks return callback/a and callback/a, which cannot be told apart"):
        told(lambda _: {"a": 1}, lambda _: {"a": 2})
    with pytest.raises(UserError, match=r"Callbacks return callback/a\? and callback/a!"):
        told(lambda _: {"a?": 1, "a!": 2})
    with pytest.raises(UserError, match="on_end returned numbers, and has no row to write them to"):
        told(lambda _: {"a": 1}, event="on_end")


@pytest.mark.slow
def test_a_callback_can_evaluate_and_fail_on_host_environments(tmp_path: Path) -> None:
    """`trainer.evaluate` leaves the environments of training alone. One that fails at the end leaves a whole run."""
    run = trainer(tmp_path / "run", env=Walk, workers=0, total_timesteps=128, eval_frequency=0)

    def evaluate(metrics: dict[str, Any]) -> dict[str, float]:
        if metrics["update"] == 2:
            raise ZeroDivisionError("at the end")
        return {"own": run.evaluate(2)["avg_reward"]}

    with pytest.raises(ZeroDivisionError, match="at the end"):
        run.train(callback=probes.EachUpdate(evaluate))
    assert [row.get("callback/own") is None for row in rows(run.path)] == [False, True]
    assert json.loads((run.path / "result.json").read_text())["stop_reason"] == "budget"
