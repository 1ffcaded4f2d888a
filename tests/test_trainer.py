"""PPOTrainer: the run directory, stopping, callbacks, failures."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import probes
import team_probes
from host_probes import CompiledWalk, Walk
from proximo import PPOAgent, PPOTrainer, settings
from proximo.envs.api import Transition
from proximo.errors import TrainingError, UserError
from proximo.plots.pictures import PICTURES
from proximo.policy.networks import Network
from proximo.train.program import CompiledProgram
from proximo.train.setup import resolve

SMALL = probes.PLAIN | dict(
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    epochs_per_update=2,
    hidden_sizes=[16],
    total_timesteps=64 * 10,
    eval_frequency=4,
    eval_episodes=3,
)


def trainer(path: Path, env: Any = "gymnax/CartPole-v1", **keywords: Any) -> PPOTrainer:
    return PPOTrainer(env=env, preset=False, out=path, **(SMALL | keywords))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def timeless(path: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows(path)]


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, with_pictures: Callable[[], AbstractContextManager[None]]
) -> tuple[Any, Any, Any]:
    path = tmp_path_factory.mktemp("runs") / "run"
    one = trainer(path, seed=5)
    with with_pictures():
        return one, one.train(), path


@pytest.mark.slow
def test_run_directory(finished: tuple[Any, Any, Any]) -> None:
    one, result, path = finished
    assert sorted(file.name for file in path.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "metrics.jsonl",
        "models",
        "plots",
        "result.json",
    ]
    assert json.loads((path / "result.json").read_text()) == result
    assert settings.build(settings.from_file(path / "config.yaml")) == one.config
    assert yaml.safe_load((path / "config.yaml").read_text())["seed"] == 5
    drawn = {file.name for file in (path / "plots").glob("*.png")}
    assert drawn == {f"{name}.png" for name in PICTURES} - {"own_metrics.png"}


@pytest.mark.slow
def test_result(finished: tuple[Any, Any, Any]) -> None:
    _, result, _ = finished
    assert result["env"] == "gymnax/CartPole-v1"
    assert (result["seed"], result["total_steps"], result["updates"]) == (5, 640, 10)
    assert result["stop_reason"] == "budget"
    assert result["converged"] is False
    assert result["final_eval"].keys() >= {
        "episodes",
        "return_mean",
        "return_std",
        "return_min",
        "return_max",
        "length_mean",
    }
    assert result["final_eval"]["episodes"] == 3
    assert result["wall_seconds"] > 0
    assert "jax" in result["versions"]


@pytest.mark.slow
def test_metrics_rows(finished: tuple[Any, Any, Any]) -> None:
    _, result, path = finished
    table = rows(path)
    assert [row["update"] for row in table] == list(range(1, 11))
    assert [row["step"] for row in table] == list(range(64, 641, 64))
    assert table[-1]["episode"] == sum(row["rollout/episodes"] for row in table) == result["episodes"]
    assert [row["update"] for row in table if "eval/return_mean" in row] == [4, 8]
    expected = {
        *("loss/objective", "loss/critic", "loss/entropy", "loss/total"),
        *("ppo/approx_kl", "ppo/clip_fraction", "ppo/explained_variance", "ppo/gradient_norm", "ppo/learning_rate"),
    }
    assert expected <= table[0].keys()
    for row in table:
        parts = -row["loss/objective"] + 0.5 * row["loss/critic"] - 0.01 * row["loss/entropy"]
        assert row["loss/total"] == pytest.approx(parts, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_models_are_the_trained_policy(finished: tuple[Any, Any, Any]) -> None:
    one, _, path = finished
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    actor = PPOAgent.load(path / "models" / "final_actor.safetensors")
    critic = PPOAgent.load(path / "models" / "final_critic.safetensors")
    np.testing.assert_array_equal(actor.act(obs), one.agent.act(obs))
    np.testing.assert_array_equal(critic.value(obs), one.agent.value(obs))
    assert not np.array_equal(one.agent.value(obs), trainer(path / "x", seed=5).agent.value(obs))


@pytest.mark.slow
def test_the_written_configuration_reproduces_the_run(finished: tuple[Any, Any, Any], tmp_path: Path) -> None:
    _, _, path = finished
    PPOTrainer(config=path / "config.yaml", out=tmp_path / "again").train()
    assert timeless(tmp_path / "again") == timeless(path)


@pytest.mark.slow
def test_evaluation_in_python(finished: tuple[Any, Any, Any]) -> None:
    one, _, _ = finished
    played = one.evaluate(num_episodes=7)
    assert played.keys() == {"avg_reward", "std_reward", "min_reward", "max_reward", "avg_length"}
    assert played["min_reward"] <= played["avg_reward"] <= played["max_reward"]
    assert played["avg_length"] == played["avg_reward"]  # CartPole pays 1 a step
    with pytest.raises(UserError, match="at least 1 episode, not 0"):
        one.evaluate(num_episodes=0)


@pytest.mark.slow
def test_stops_at_the_very_update_that_converges(tmp_path: Path) -> None:
    """One reward per one-step episode: the window of 40 is full after update 1 (64 episodes), patience 100 more
    windows later, in update 3 (41 + 99 = 139 windows need 40 + 99 = 139 episodes; 2 updates have 128)."""
    one = trainer(
        tmp_path / "run",
        env=probes.OneStep(),
        target_reward=1.0,
        convergence_window=40,
        early_stopping_patience=100,
        eval_frequency=0,
    )
    result = one.train()
    assert result["stop_reason"] == "converged"
    assert result["converged"] is True
    assert result["updates"] == len(rows(tmp_path / "run")) == 3
    # The kept policy is that of update 3, not of the end of the chunk it was found in.
    alone = trainer(tmp_path / "alone", env=probes.OneStep(), total_timesteps=3 * 64, eval_frequency=0)
    alone.train()
    for kept, wanted in zip(jax.tree.leaves(one.agent.params), jax.tree.leaves(alone.agent.params), strict=True):
        np.testing.assert_array_equal(kept, wanted)


LUCKY = {"target_reward": 25.0, "convergence_window": 4, "early_stopping_patience": 1, "total_timesteps": 64 * 40}


@pytest.mark.slow
@pytest.mark.parametrize("on", ["training", "evaluation"])
def test_a_run_is_solved_only_if_its_final_evaluation_says_so(on: str, tmp_path: Path) -> None:
    """Four lucky episodes of 25 steps claim the goal early; over twelve seeds, many claims are refused first."""
    refused = ended = 0
    for seed in range(12):
        path = tmp_path / str(seed)
        result = trainer(path, seed=seed, stop_on=on, eval_frequency=4 if on == "evaluation" else 0, **LUCKY).train()
        judged = [row for row in rows(path) if "goal/confirmed" in row]
        last = rows(path)[-1]
        if result["stop_reason"] == "converged":
            ended += 1
            assert result["converged"] is True
            assert result["final_eval"]["return_mean"] >= 25
            assert result["final_eval"]["episodes"] == 3
            # The final evaluation is the one that confirmed it.
            assert result["final_eval"] == {name: last[f"eval/{name}"] for name in result["final_eval"]}
        else:
            assert (result["stop_reason"], result["converged"]) == ("budget", False)
        assert all(row["goal/confirmed"] == (row["eval/return_mean"] >= 25) for row in judged)
        assert all(row["goal/training_return"] >= 25 for row in judged)
        assert result["unconfirmed_goals"] == sum(not row["goal/confirmed"] for row in judged)
        refused += result["unconfirmed_goals"]
    assert ended >= 3
    assert refused > 0 if on == "training" else refused == 0


@pytest.mark.slow
def test_the_final_evaluation_that_confirms_is_not_played_twice(tmp_path: Path) -> None:
    goal = {"target_reward": 1.0, "convergence_window": 8, "early_stopping_patience": 1, "eval_frequency": 0}
    listener = probes.Listener()
    result = trainer(tmp_path / "run", env=probes.OneStep(), **goal).train(callback=listener)
    assert (result["stop_reason"], result["updates"]) == ("converged", 1)
    assert [event for event, _ in listener.heard].count("evaluation") == 1


@pytest.mark.slow
def test_where_drawn_actions_reach_the_goal_and_the_most_likely_do_not(tmp_path: Path) -> None:
    one = trainer(tmp_path / "run", probes.Alternating(), target_reward=3.0, convergence_window=8, eval_frequency=0)
    one.console = probes.Notes()
    result = one.train()
    assert (result["stop_reason"], result["converged"]) == ("budget", False)
    assert result["final_return"] > 3
    assert result["final_eval"]["return_mean"] <= 1
    assert result["unconfirmed_goals"] > 1
    told = [said for said in one.console.said if said.startswith("Not solved")]
    assert len(told) == 1
    assert "with sampled actions (the goal is 3), but an evaluation with deterministic actions averaged" in told[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_teams_are_solved_only_if_their_final_evaluation_says_so(seed: int, tmp_path: Path) -> None:
    """Both agents get about 10 or -10 by a coin: two lucky episodes claim the 9, and ten do not confirm it."""
    goal = LUCKY | {"target_reward": 9.0, "convergence_window": 2, "total_timesteps": 64 * 4, "eval_episodes": 10}
    result = trainer(tmp_path / "run", team_probes.Weather(), seed=seed, eval_frequency=0, **goal).train()
    assert (result["stop_reason"], result["converged"]) == ("budget", False)
    assert result["unconfirmed_goals"] > 0
    assert result["final_eval"]["return_mean"] < 9
    assert result["final_eval"]["episodes"] == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "goal"), [("gymnax/CartPole-v1", LUCKY), (probes.Alternating(), LUCKY | {"target_reward": 3.0})]
)
def test_claims_do_not_depend_on_chunks(env: Any, goal: dict[str, Any], tmp_path: Path) -> None:
    """Update by update, as callbacks make it, and in chunks that are cut where a goal is claimed."""
    results = []
    for name, callback in (("one", lambda metrics: None), ("many", None)):
        result = trainer(tmp_path / name, env, seed=11, eval_frequency=7, **goal).train(callback=callback)
        results.append({key: result[key] for key in ("stop_reason", "updates", "unconfirmed_goals", "final_eval")})
    assert results[0] == results[1]
    assert results[0]["unconfirmed_goals"] > 0 or env == "gymnax/CartPole-v1"
    assert timeless(tmp_path / "one") == timeless(tmp_path / "many")


@pytest.mark.slow
def test_budgets_of_episodes_and_seconds(tmp_path: Path) -> None:
    result = trainer(tmp_path / "a", env=probes.OneStep(), max_episodes=100, eval_frequency=0).train()
    assert (result["episodes"], result["stop_reason"]) == (128, "budget")
    result = trainer(tmp_path / "b", env=probes.OneStep(), max_seconds=0.5, total_timesteps=10**9).train()
    assert result["stop_reason"] == "budget"
    assert result["wall_seconds"] < 60


@pytest.mark.slow
def test_training_again_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    console = probes.Notes()
    one = trainer(tmp_path / "run", console=console)
    first = one.train()
    console.said.clear()
    again = one.train()
    assert (first["total_steps"], again["total_steps"]) == (640, 1280)
    assert len(rows(tmp_path / "run")) == 20
    assert console.said[0].endswith("run was complete; it is trained on for as long again.")
    assert again["resumed"] == [{"step": 640, "exact": True}]
    assert one.train()["total_steps"] == 1920


def test_training_again_after_an_interrupt_ends_what_was_begun(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole").train()
    one = trainer(tmp_path / "run")
    stop = lambda metrics: os.kill(os.getpid(), signal.SIGINT) if metrics["update"] == 4 else None  # noqa: E731
    assert one.train(callback=probes.EachUpdate(stop))["stop_reason"] == "interrupted"
    again = one.train()
    assert (again["total_steps"], again["final_eval"]) == (whole["total_steps"], whole["final_eval"])


@pytest.mark.slow
def test_episodes_are_a_budget_that_training_again_extends(tmp_path: Path) -> None:
    one = trainer(tmp_path / "run", env=probes.OneStep(), max_episodes=100, eval_frequency=0)
    assert one.train()["episodes"] == 128
    assert one.train()["episodes"] == 256  # 128 and 100 more, to the end of the update


def test_python_says_what_a_preset_sets(tmp_path: Path) -> None:
    said = PPOTrainer("gymnax/CartPole-v1", out=tmp_path / "run", max_episodes=3)._start.remarks
    assert said[0].startswith("Preset for gymnax/CartPole-v1 (preset=False trains without it): ")
    assert "stop.target_reward=475" in said[0]
    assert "ends the run if it is reached before train.max_episodes=3" in said[1]
    assert PPOTrainer("gymnax/CartPole-v1", out=tmp_path / "run", preset=False, max_episodes=3)._start.remarks == []


def test_verbose_prints_the_block_of_every_update_with_its_own_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PPOTrainer(
        "gymnax/CartPole-v1", out=tmp_path / "run", preset=False, verbose=True, **(SMALL | {"total_timesteps": 192})
    ).train()
    assert capsys.readouterr().out.count("ROLLOUT STATISTICS") == 3
    times = [row["time/update"] for row in rows(tmp_path / "run")]
    assert len(set(times)) == 3, "not the mean of several"
    with pytest.raises(UserError, match="not both"):
        PPOTrainer("gymnax/CartPole-v1", verbose=True, console=probes.Notes())


@pytest.mark.slow
@pytest.mark.parametrize("make_env", [CompiledWalk, Walk])
def test_what_a_rollout_holds_can_be_had(make_env: Callable[[], Any], tmp_path: Path) -> None:
    """Of `Walk`: x goes 0.75 up from 0.25, or 0.5 down, and is the reward; at step 0 only up is allowed."""
    one = trainer(tmp_path / "run", env=make_env(), num_envs=2, rollout_length=8, minibatch_size=16)
    held = one.collect()
    assert {"observations", "actions", "rewards", "next_observations", "dones", "log_probs", "values"} <= held.keys()
    assert {held[name].shape for name in ("actions", "rewards", "dones", "log_probs", "values")} == {(8, 2)}
    assert held["observations"].shape == held["next_observations"].shape == (8, 2, 2)
    np.testing.assert_array_equal(held["observations"][0], [[0.25, 0], [0.25, 0]])
    np.testing.assert_array_equal(held["actions"][0], [1, 1])
    np.testing.assert_array_equal(held["rewards"][0], [1.0, 1.0])
    np.testing.assert_array_equal(held["next_observations"][0], [[1.0, 1], [1.0, 1]])
    np.testing.assert_allclose(held["log_probs"][0], 0.0, atol=1e-6)  # one action was allowed
    cut = held["truncated"]
    if cut.any():
        np.testing.assert_array_equal(
            held["next_observations"][cut][:, 1], 7.0
        )  # where it led, not where it began anew
    first = held["observations"][0]
    np.testing.assert_allclose(held["values"][0], one.agent.value(first), rtol=1e-5)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_a_rollout_of_many_agents_holds_is_by_group(tmp_path: Path) -> None:
    held = trainer(
        tmp_path / "run", env=team_probes.TwoKinds(), num_envs=2, rollout_length=4, minibatch_size=8
    ).collect()
    assert list(held) == ["sorter", "aimer"]
    assert held["sorter"]["rewards"].shape == (4, 4)


class Poisoned(probes.Counter):
    """Emits NaN as its reward from the 40th step of an episode on."""

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock = state[0] + 1
        return (clock, state[1]), Transition(
            obs=self.observe(clock, state[1]), reward=jnp.where(clock < 40, 1.0, jnp.nan)
        )


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_with_the_last_good_policy(tmp_path: Path) -> None:
    one = trainer(tmp_path / "run", env=Poisoned(), eval_frequency=0)
    with pytest.raises(
        TrainingError, match=r"In update 3 the reward is not finite \(loss/\w+ = nan\), so training stopped"
    ):
        one.train()
    assert len(rows(tmp_path / "run")) == 2
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["stop_reason"], result["updates"]) == ("failed", 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one.agent.params))


class Sick(probes.Counter):
    """Its observation is NaN in the 40th step of an episode alone."""

    def observe(self, clock: jax.Array, number: jax.Array) -> jax.Array:
        return super().observe(clock, number) + jnp.where(clock == 40, jnp.nan, 0.0).astype(jnp.float32)


@pytest.mark.slow
def test_an_update_that_is_not_finite_can_be_undone(tmp_path: Path) -> None:
    """Episodes of 50 steps, rollouts of 16: the 40th is in the third rollout, and 50 steps later again, in the sixth
    (step 90), the ninth (140), and not in the tenth."""
    one = trainer(tmp_path / "run", env=Sick(), eval_frequency=0, on_nonfinite="skip", max_steps_per_episode=50)
    one.console = probes.Notes()
    result = one.train()
    assert (result["stop_reason"], result["updates"], result["skipped_updates"]) == ("budget", 10, 3)
    assert [row["skipped"] for row in rows(tmp_path / "run")] == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    norms = [row["ppo/parameter_norm"] for row in rows(tmp_path / "run")]
    assert [update for update, norm in enumerate(norms, 1) if norm is None] == [3, 6, 9]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one.agent.params))
    assert "Update 3 was undone: loss/critic = nan (train.on_nonfinite=skip)." in one.console.said


@pytest.mark.slow
def test_a_run_that_does_not_recover_ends(tmp_path: Path) -> None:
    one = trainer(tmp_path / "run", env=Poisoned(), eval_frequency=0, on_nonfinite="skip", total_timesteps=64 * 100)
    with pytest.raises(TrainingError, match="In update 22 the reward is not finite"):
        one.train()
    assert len(rows(tmp_path / "run")) == 2 + 19


@pytest.mark.slow
def test_the_tensor_is_named_where_it_began(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="In update 3 the observation is not finite"):
        trainer(tmp_path / "run", env=Sick(), eval_frequency=0).train()
    one = trainer(tmp_path / "other")
    one.agent.params["critic"]["Dense_0"]["kernel"] *= np.float32(np.inf)
    with pytest.raises(TrainingError, match="In update 1 the parameter before it, critic/Dense_0/kernel is not finite"):
        one.train()


@pytest.mark.slow
def test_evaluations_can_decide(tmp_path: Path) -> None:
    """Each pays 1, in episodes of one step: three evaluations in a row, every second update."""
    goal = {"target_reward": 1.0, "early_stopping_patience": 3, "eval_frequency": 2, "stop_on": "evaluation"}
    result = trainer(tmp_path / "run", env=probes.OneStep(), **goal).train()
    assert (result["stop_reason"], result["updates"], result["best_return"]) == ("converged", 6, 1.0)
    assert result["final_return"] == 1.0
    with pytest.raises(UserError, match=r"set eval\.frequency to 1 or more"):
        trainer(tmp_path / "never", **(goal | {"eval_frequency": 0}))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_cleanly(number: int, tmp_path: Path) -> None:
    one = trainer(tmp_path / "run", total_timesteps=10**9, eval_frequency=0)

    def send() -> None:
        while not (tmp_path / "run" / "metrics.jsonl").exists() or not rows(tmp_path / "run"):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=send, daemon=True).start()
    result = one.train()
    assert result["stop_reason"] == "interrupted"
    assert one.interrupted_by == number
    assert result["updates"] == len(rows(tmp_path / "run")) > 0
    assert result["final_eval"] is None
    assert PPOAgent.load(tmp_path / "run" / "models" / "final_actor.safetensors")
    assert signal.getsignal(number) is before


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="is not an empty folder"):
        trainer(tmp_path).train()
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_an_agent_can_be_handed_in(tmp_path: Path) -> None:
    first = trainer(tmp_path / "a", normalize_observations=True)
    first.train()
    others = {name: value for name, value in SMALL.items() if not name.startswith("normalize_")}

    def after(name: str, env: Any = "gymnax/CartPole-v1", **given: Any) -> PPOTrainer:
        return PPOTrainer(env, agent=first.agent, preset=False, out=tmp_path / name, **(others | given))

    second = after("b")
    assert second.config.normalize == first.config.normalize
    assert second.agent is first.agent
    second.train()
    with pytest.raises(UserError, match="agent's observation_space"):
        after("c", env="gymnax/Acrobot-v1")
    after("d", normalize_observations=True)
    with pytest.raises(UserError, match=r"network\.memory is none in the agent that was handed in.*become gru"):
        after("e", memory="gru")


@pytest.mark.parametrize("given", [{"layer_norm": True}, {"config": {"network": {"layer_norm": True}}}])
def test_settings_that_own_networks_do_not_read_are_refused(given: dict[str, Any]) -> None:
    never: Any = print
    networks = {"actor": Network(never, never), "critic": Network(never, never)}
    with pytest.raises(UserError, match=r"network\.layer_norm has no effect on networks of your own"):
        PPOTrainer(env="gymnax/CartPole-v1", network=networks, **given)


@pytest.mark.slow
def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("stop: {target_reward: 300, convergence_window: 50}")
    tuned = resolve("gymnax/CartPole-v1", None, True, {}).config
    assert (tuned.stop.target_reward, tuned.train.total_timesteps) == (475, 200_000)
    assert resolve("gymnax/CartPole-v1", None, False, {}).config.stop.target_reward is None
    layered = resolve("gymnax/CartPole-v1", file, True, {"target_reward": 200}).config
    assert (layered.stop.target_reward, layered.stop.convergence_window) == (200, 50)
    assert layered.train.total_timesteps == tuned.train.total_timesteps
    assert resolve(None, {"env": {"id": "gymnax/Acrobot-v1"}}, True, {}).config.env.id == "gymnax/Acrobot-v1"


def test_wrong_environments_are_refused() -> None:
    with pytest.raises(UserError, match="not object"):
        PPOTrainer(env=object())
    with pytest.raises(UserError, match=r"Proximo calls it ppo\.clip_epsilon"):
        PPOTrainer(env="gymnax/CartPole-v1", clip_range=0.2)


@pytest.mark.parametrize(("env", "kind"), [("gymnax/CartPole-v1", 0), ("gymnax/Pendulum-v1", 1)])
def test_what_is_left_to_the_actions_is_settled_before_it_is_written(env: str, kind: int, tmp_path: Path) -> None:
    made = trainer(tmp_path / "run", env, entropy_coef="auto")
    assert made.config.ppo.entropy_coef == settings.SETTINGS["ppo.entropy_coef"].metadata["by_action"][kind]
    assert isinstance(made.program, CompiledProgram)
    assert made.program.config == made.config


@pytest.mark.slow
def test_a_run_on_an_environment_without_preset_says_that_it_has_none(tmp_path: Path) -> None:
    def told(env: Any, **given: Any) -> Any:
        return PPOTrainer(env, out=tmp_path / "run", **(SMALL | given))._start.remarks

    (said,) = told("gymnax/MountainCar-v0")
    assert said.startswith("gymnax/MountainCar-v0 has no preset, so the defaults are used (4 x 16 steps")
    assert told("gymnax/MountainCar-v0", preset=False) == []
    assert told("gymnax/MountainCar-v0", config={"ppo.gamma": 0.9}) == []
    (tuned,) = told("gymnax/CartPole-v1")
    assert tuned.startswith("Preset for gymnax/CartPole-v1 (preset=False trains without it)")
    (named,) = told("gymnax/CartPole-v1", preset="documents")
    assert named.startswith("Preset for documents (preset=False trains without it): env.num_envs=8")
