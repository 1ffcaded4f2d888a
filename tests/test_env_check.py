"""`proximo check`: environments that break one thing each, and what is said of them."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import vector_probes
from host_probes import CompiledWalk, Walk
from made import host_source
from proximo.cli.common import app
from proximo.envs import judge
from proximo.errors import UserError
from proximo.settings import build
from proximo.train.env_check import EnvReport, Trial, check, compare, look_at_play, look_at_resuming


class Probe(gymnasium.Env[Any, Any]):
    """Well behaved, but for what `how` says. Episodes last 4 to 7 steps, by chance; the reward is the first number of
    the action."""

    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,))

    def __init__(self, how: str = ""):
        self.how = how
        self.observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (2,)), "kind": spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, 4 if self.how == "limit" else int(self.np_random.integers(4, 8))
        return self._seen([0.0, 0.0]), {}

    def _seen(self, action: Any) -> Any:
        chance = (
            np.random.default_rng().random() if self.how == "chance" and self.steps > 2 else self.np_random.random()
        )
        x = np.array([chance, action[0] + (0 if self.how == "idle" else action[1])], np.float32)
        if self.how == "constant":
            x[0] = 0.5
        return {"x": x * (100 if self.how == "outside" else 1), "kind": 7 if self.how == "kind" else int(chance * 3)}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.how == "raises" and self.steps == 3:
            raise RuntimeError("the wheel came off")
        scale = {"large": 1e4, "nothing": 0.0}.get(self.how, 1.0)
        reward: Any = [1.0, 2.0] if self.how == "several" else float(action[0]) * scale
        ended = self.steps == self.length and self.how != "endless"
        return self._seen(action), reward, ended, False, {"profit": 1.0, "name": "me"}


def named(report: EnvReport) -> dict[tuple[str, str], str]:
    """What was found, by kind and matter."""
    return {(kind, about): sentence for kind, about, sentence in report.findings}


def findings(env: Any) -> dict[tuple[str, str], str]:
    return named(check(env, steps=60, preset=False, hidden_sizes=[4], normalize_rewards=False))


@pytest.mark.slow
def test_a_good_environment_has_no_notes() -> None:
    found = findings(Probe)
    assert {kind for kind, _ in found} == {"ok"}
    assert set(found) >= {("ok", about) for about in ("spaces", "episodes", "rewards", "seeds", "actions", "resume")}
    assert "can be reported (track.info): profit." in found["ok", "info"]
    assert "Worker processes can step it" in found["ok", "workers"]


@pytest.mark.parametrize(
    ("how", "kind", "about", "sentence"),
    [
        ("endless", "note", "episodes", "No episode ended within 60 steps"),
        ("limit", "note", "episodes", "episodes terminated after exactly 4 steps"),
        ("large", "note", "rewards", "Rewards are large"),
        ("nothing", "note", "rewards", "Every reward of 60 steps was 0"),
        ("constant", "note", "observations", "observation['x'][0] never changed"),
        ("idle", "note", "actions", "action[1] made no difference"),
        ("outside", "note", "spaces", "outside of its space"),
        ("chance", "note", "seeds", "lead somewhere else at step 3"),
        ("chance", "note", "resume", "A run that was stopped goes on with new episodes"),
        ("kind", "problem", "spaces", "observation['kind'] is 7, outside of its space Discrete(3)"),
    ],
)
def test_what_is_broken_is_said(how: str, kind: str, about: str, sentence: str) -> None:
    source, report = host_source(lambda: Probe(how)), EnvReport("Probe")
    config = build({"normalize.rewards": False})
    trial = Trial(source, config)
    played = trial.play(60, 60.0)
    look_at_play(report, played, source, config)
    if about in ("seeds", "actions"):
        compare(report, played, trial)
    if about == "resume":
        look_at_resuming(report, trial)
    assert sentence in named(report)[kind, about]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "sentence"),
    [("several", "the reward must be a number"), ("raises", "RuntimeError: the wheel came off")],
)
def test_an_environment_that_fails(how: str, sentence: str) -> None:
    assert sentence in findings(lambda: Probe(how))["problem", "step"]


def test_actions_without_bounds() -> None:
    assert judge.unbounded_actions([]) is None
    assert "action['arm'] has no bounds" in str(judge.unbounded_actions(["action['arm']"]))


@pytest.mark.slow
def test_what_cannot_be_sent_to_another_process() -> None:
    lock = __import__("threading").Lock()

    def made() -> Any:
        assert not lock.locked()
        return Probe()

    assert "cannot be sent to another process" in findings(made)["note", "workers"]


@pytest.mark.slow
def test_spaces_that_no_policy_has() -> None:
    class Odd(Probe):
        action_space = spaces.Text(4)

    assert "Text" in findings(Odd)["problem", "spaces"]


@pytest.mark.slow
@pytest.mark.parametrize("env", [Walk, CompiledWalk(), lambda num_envs: vector_probes.Counters(num_envs)])
def test_each_kind_of_environment(env: Any) -> None:
    found = findings(env)
    assert {kind for kind, _ in found} <= {"ok", "note"}
    assert ("ok", "seeds") in found
    assert "It says which actions are allowed" in found["ok", "masks"]


@pytest.mark.slow
def test_many_agents() -> None:
    pytest.importorskip("pettingzoo")
    import zoo_probes

    found = findings(zoo_probes.Lifetimes)
    assert "problem" not in {kind for kind, _ in found}


def test_a_report_is_read_by_people_and_by_machines() -> None:
    report = EnvReport("Some-v0")
    assert report.add("ok", "seeds", "Good.")
    assert not report.add("note", "seeds", None)
    assert report.trainable
    report.add("problem", "step", "Bad.")
    assert not report.trainable
    assert str(report) == "ok       seeds: Good.\nproblem  step: Bad."
    assert report.to_dict() == {
        "env": "Some-v0",
        "trainable": False,
        "findings": [
            {"kind": "ok", "about": "seeds", "sentence": "Good."},
            {"kind": "problem", "about": "step", "sentence": "Bad."},
        ],
    }


@pytest.mark.slow
def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium.register("CheckProbe-v0", lambda **given: Probe(**given))
    try:
        good = CliRunner().invoke(app, ["check", "CheckProbe-v0", "--steps", "40", "--json"])
        assert good.exit_code == 0, good.output
        told = json.loads(good.stdout)
        assert told["trainable"]
        bad = CliRunner().invoke(app, ["check", "CheckProbe-v0", "--steps", "40", "--env-arg", "how=raises"])
        assert bad.exit_code == 1
        assert "It cannot be trained as it is: 1 problem." in bad.stdout
    finally:
        del gymnasium.registry["CheckProbe-v0"]


def test_nothing_to_check() -> None:
    with pytest.raises(UserError, match="at least 1 step"):
        check(Walk, steps=0)
