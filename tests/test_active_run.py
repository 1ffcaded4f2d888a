"""A run while it is trained: what its context takes, and gives back."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proximo import PPOTrainer
from proximo.envs.groups import ONE
from proximo.train.active_run import ActiveRun
from proximo.train.callbacks import Callbacks
from proximo.train.finish import finish_run
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
