"""Evaluation with the most likely actions, with drawn ones, with both: what scores, what is said where they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from killed import lines
from proximo import PPOTrainer
from proximo.config import Config, EvalConfig
from proximo.envs.api import Transition
from proximo.errors import UserError
from proximo.rollout.actions import Returns, difference_in_words, final_note, scoring, surely_larger
from proximo.run_dir import tensors
from proximo.settings import build

SMALL: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    hidden_sizes=[8],
    total_timesteps=64 * 12,
    epochs_per_update=1,
    eval_frequency=3,
    eval_episodes=10,
    num_checkpoints=0,
    learning_rate=1e-6,
    preset=False,
)


class Stuck(probes.Probe):
    """-1 a step until two actions in a row differ, or for 30 steps. Nothing is seen: whoever always does what is most
    likely is stuck; actions that are drawn evenly get out after 3 steps on average."""

    name = "stuck"

    def observe(self, clock: jax.Array, cue: jax.Array) -> Any:
        return jnp.zeros(1, jnp.float32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, before = state[0] + 1, state[1]
        done = action.astype(jnp.float32)
        differs = (state[0] > 0) & (done != before)
        seen = self.observe(clock, before)
        moved = Transition(obs=seen, reward=-1.0, terminated=differs, truncated=~differs & (clock >= 30))
        return (clock, done), moved


def trained(path: Path, **given: Any) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    notes = probes.Notes()
    PPOTrainer(Stuck(), out=path, console=notes, **(SMALL | given)).train()
    result = json.loads((path / "result.json").read_text())
    return result, [json.loads(line) for line in lines(path)], notes.said


def test_both_are_told_and_the_chosen_one_scores(tmp_path: Path) -> None:
    """The same training, whatever is evaluated; with `score`, whose best policy it is changes, and its numbers."""
    runs = {
        "usual": trained(tmp_path / "usual"),
        "both": trained(tmp_path / "both", eval_actions="both"),
        "drawn": trained(tmp_path / "drawn", eval_actions="both", eval_score="stochastic"),
        "alone": trained(tmp_path / "alone", eval_actions="stochastic"),
    }
    final = {name: result["final_eval"] for name, (result, *_) in runs.items()}
    assert final["usual"]["return_mean"] == final["both"]["return_mean"] == -30
    assert final["usual"] == {name: value for name, value in final["both"].items() if "/" not in name}
    drawn = final["both"]["stochastic/return_mean"]
    assert -5 < drawn < -2
    assert drawn == final["drawn"]["return_mean"] == final["alone"]["return_mean"]
    assert final["drawn"]["deterministic/return_mean"] == -30
    assert [result["best_policy"]["score"] > -30 for result, *_ in runs.values()] == [False, False, True, True]
    for row in runs["both"][1][2:11:3]:
        assert row["eval/return_mean"] == -30 < row["eval/stochastic/return_mean"]
    actors = [tensors.read(tmp_path / name / "models" / "final_actor.safetensors", "policy")[0] for name in runs]
    for other in actors[1:]:
        for name, array in actors[0].items():
            np.testing.assert_array_equal(array, other[name])


def test_what_differs_much_is_said_at_the_end(tmp_path: Path) -> None:
    """Against training returns too, where the most likely actions alone are evaluated; once, and with what to do."""
    for name, given, words in (
        ("usual", {}, r"with sampled ones in training. Use it with sampled ones: agent.act(obs, deterministic=False)"),
        ("both", {"eval_actions": "both"}, "with sampled ones. Use it with sampled ones"),
    ):
        found = [note for note in trained(tmp_path / name, **given)[2] if "its most likely actions" in note]
        assert len(found) == 1
        assert found[0].startswith("The policy returns -30 with its most likely actions, and -")
        assert words in found[0]
    assert not [note for note in trained(tmp_path / "alone", eval_actions="stochastic")[2] if "most likely" in note]


def test_python_evaluates_either_way(tmp_path: Path) -> None:
    trainer = PPOTrainer(Stuck(), out=tmp_path / "run", **SMALL)
    assert trainer.evaluate(5)["avg_reward"] == trainer.evaluate(5, deterministic=True)["avg_reward"] == -30
    assert trainer.evaluate(5, deterministic=False)["avg_reward"] > -30


def test_welchs_test() -> None:
    """Means 10 and 0, deviations 4 and 3 of populations of 5 and 10: e = 16 / 4 and 9 / 9, t = 10 / sqrt(5) = 4.47 with
    25 / (16 / 4 + 1 / 9) = 6.08 degrees of freedom, of which 5.2 is surpassed by chance once in a thousand times; of
    t = 12 / sqrt(5) = 5.37 it is surpassed."""
    other = Returns(0.0, 3.0, 10)
    assert not surely_larger(Returns(10.0, 4.0, 5), other)
    assert surely_larger(Returns(12.0, 4.0, 5), other)
    assert not surely_larger(other, Returns(12.0, 4.0, 5))
    assert surely_larger(Returns(-165.0, 0.0, 100), Returns(-500.0, 0.0, 10))
    assert not surely_larger(Returns(100.0, 0.0, 100), Returns(90.0, 0.0, 10)), "surely, but not by much"
    assert not surely_larger(Returns(100.0, 0.0, 1), Returns(0.0, 0.0, 10)), "nothing is known of one episode"
    assert not surely_larger(Returns(None, None, 10), other)


def test_chance_is_rarely_taken_for_a_difference() -> None:
    """Of pairs of equal means, with very different spreads, as few as was said; here none of 2,000."""
    draw = np.random.default_rng(0)
    pairs = [(draw.normal(1, 2, 100), draw.normal(1, 5, 10)) for _ in range(2000)]
    said = [surely_larger(*(Returns(float(x.mean()), float(x.std()), len(x)) for x in pair)) for pair in pairs]
    assert sum(said) <= 6


def test_when_nothing_is_said() -> None:
    played = {"return_mean": -500.0, "return_std": 0.0, "episodes": 10}
    training, config = np.full(100, -165.0), Config()
    assert len(final_note(played, config, training, "runs/x")) == 1
    assert final_note(played, config, training[:19], "runs/x") == [], "too few episodes"
    assert final_note({}, config, training, "runs/x") == [], "not evaluated"
    selfplay = replace(config, agents=replace(config.agents, selfplay=0.5))
    assert final_note(played, selfplay, training, "runs/x") == []
    better = {"return_mean": -80.0, "return_std": 0.0, "episodes": 10}
    assert final_note(better, config, training, "runs/x") == [], "a policy may have become better"
    assert "Use it with the most likely ones" in difference_in_words(Returns(9.0, 0.1, 9), Returns(1.0, 0.1, 9), "x")[0]


def test_which_one_scores() -> None:
    assert scoring(Config(eval=EvalConfig())) == "deterministic"
    assert scoring(Config(eval=EvalConfig(actions="stochastic"))) == "stochastic"
    assert scoring(Config(eval=EvalConfig(actions="both"))) == "deterministic"
    assert scoring(Config(eval=EvalConfig(actions="both", score="stochastic"))) == "stochastic"
    with pytest.raises(UserError, match=r"eval.score=stochastic needs such evaluations, but eval.actions=determin"):
        build({"eval.score": "stochastic"})
    build({"eval.score": "stochastic", "eval.actions": "stochastic"})
