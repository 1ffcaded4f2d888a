"""A run while it is trained: what its context takes, and gives back."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proximo import PPOTrainer
from proximo.display.console import Console
from proximo.envs.groups import ONE
from proximo.train.active_run import ActiveRun
from proximo.train.callbacks import Callbacks
from proximo.train.finish import finish_run
from proximo.train.interrupt import Interrupt
from test_trainer import trainer


def active_run(one: PPOTrainer) -> ActiveRun:
    return ActiveRun(one, one._agents, one._start, Callbacks(None), finish_run)


@pytest.mark.slow
def test_what_comes_after_a_reached_goal_is_no_failure(tmp_path: Path) -> None:
    """A chunk goes past the update that reached the goal; that a later one is not finite concerns nobody."""
    one = trainer(tmp_path / "run")
    state = one.program.init(({ONE: one.agent.params}, {ONE: one.agent.obs_stats}, {}))
    after, reports = one.program.run(state, 2)
    reports[1] = dataclasses.replace(reports[1], metrics=dict.fromkeys(reports[1].metrics, np.float32(np.nan)))
    run = active_run(one)
    run.progress.stop_reason = "converged"
    kept = run.cut(state, reports, [{}])
    assert (int(kept.train.update), int(after.train.update), run.failure) == (1, 2, "")


class Broken(Exception):
    pass


@pytest.mark.slow
def test_what_fails_before_training_began_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder and the signals are given back; what was written before is there to go on from."""

    def broken(state: Any) -> None:
        raise Broken

    before = signal.getsignal(signal.SIGTERM)
    one = trainer(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(one.program, "compile", broken)
        with pytest.raises(Broken):
            one.train()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "run" / "result.json").exists()
    assert one.train()["total_steps"] == 640


def test_a_failure_becomes_the_result(tmp_path: Path) -> None:
    """Whoever reads the folder finds out; what was trained is saved, and the failure is raised as it was."""
    run = active_run(trainer(tmp_path / "run"))

    def fail() -> None:
        with run:
            run.start()
            raise Broken("mine")

    with pytest.raises(Broken) as caught:
        fail()
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert (run.result["stop_reason"], run.result["updates"], run.result["final_eval"]) == ("failed", 0, None)
    assert (tmp_path / "run" / "models" / "final_actor.safetensors").is_file()
    assert (tmp_path / "run" / "result.json").is_file()


class Watcher(Console):
    """Keeps the phases that it is told of; sends the run `ends` in the one of that name, once an episode was played."""

    def __init__(self, ends: str = ""):
        self.phases: dict[str, str] = {}
        self._ends = ends

    def phase(self, what: str, how_far: str = "") -> None:
        self.phases[what] = how_far or self.phases.get(what, "")
        if what == self._ends and how_far and not how_far.startswith("0 "):
            assert Interrupt._active is not None
            Interrupt._active.end(signal.SIGINT)


@pytest.mark.slow
def test_a_stop_in_the_final_evaluation_keeps_what_was_played(tmp_path: Path) -> None:
    """Of 200 episodes some are over after the first 64 steps; a resume plays them all."""
    console = Watcher("final evaluation")
    one = trainer(tmp_path / "run", total_timesteps=128, eval_episodes=200, eval_frequency=0, console=console)
    result = one.train()
    assert list(console.phases) == [
        "starting the environments",
        "compiling the training program",
        "making the first update",
        "final evaluation",
        "drawing the plots",
    ]
    played, total = console.phases["final evaluation"].removesuffix(" episodes").split(" of ")
    assert result["stop_reason"] == "interrupted"
    assert result["final_eval"]["interrupted"] is True
    assert 0 < result["final_eval"]["episodes"] == int(played) < int(total) == 200
    assert result["final_eval"]["return_mean"] > 0
    assert result["best_policy"]["score"] is None, "part of an evaluation is no score"
    again = PPOTrainer.resume(tmp_path / "run", verbose=0).train()
    assert (again["stop_reason"], again["final_eval"]["episodes"]) == ("budget", 200)
    assert "interrupted" not in again["final_eval"]


@pytest.mark.slow
def test_a_stop_in_an_evaluation_on_the_way_keeps_nothing(tmp_path: Path) -> None:
    """Its row waits, and the resumed run evaluates it whole."""
    given = {"total_timesteps": 256, "eval_episodes": 200, "eval_frequency": 1}
    result = trainer(tmp_path / "run", console=Watcher("evaluating"), **given).train()
    assert (result["stop_reason"], result["final_eval"]) == ("interrupted", None)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""
    PPOTrainer.resume(tmp_path / "run", verbose=0).train()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["eval/episodes"] == 200
    assert "eval/interrupted" not in rows[0]
