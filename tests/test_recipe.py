"""Losses and optimizers that are handed in go the way of the built-in ones, and come back after a resume."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml

import probes
import team_probes
from proximo import PPOTrainer, clip_loss, run_multiple_experiments, scale_by_rates
from proximo.errors import TrainingError, UserError
from proximo.experiment.plan import Plan
from proximo.experiment.runner import carry_out
from proximo.ppo.loss import Hyper, Outputs
from proximo.ppo.optimizer import adam
from proximo.ppo.recipe import BUILT_IN, Recipe, follows_rates, make_recipe
from proximo.ppo.samples import Samples

SMALL: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=8,
    minibatch_size=16,
    epochs_per_update=2,
    hidden_sizes=[8],
    total_timesteps=32 * 6,
    eval_frequency=0,
    eval_episodes=2,
    learning_rate_schedule="linear",
)
FEW: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "learning_rate_schedule"} | {
    "total_timesteps": 64
}


def trainer(path: Path, env: Any = None, **keywords: Any) -> PPOTrainer:
    return PPOTrainer(env or probes.MatchTheCue(), out=path, preset=False, console=probes.Notes(), **SMALL | keywords)


def trained(path: Path, **keywords: Any) -> Any:
    one = trainer(path, **keywords)
    one.train()
    return one.agent.params


def same(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def own_loss(outputs: Outputs, samples: Samples, hyper: Hyper) -> Any:
    return clip_loss(outputs, samples, hyper) | {"surprise": (0, -outputs.log_prob)}


OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_amsgrad(), scale_by_rates())
PARTS = ("params", "obs_stats", "reward_stats")
OWN = {"loss": own_loss, "optimizer": OPTIMIZER}


def example(name: str) -> ModuleType:
    file = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What it is


def test_what_is_handed_in_has_no_key() -> None:
    assert make_recipe() == BUILT_IN
    assert make_recipe(clip_loss).key == BUILT_IN.key is not None
    assert make_recipe(own_loss).key is make_recipe(None, OPTIMIZER).key is Recipe(own_loss).key is None


@pytest.mark.parametrize(
    ("handed_in", "sentence"),
    [
        ({"loss": 3}, r"loss is a function of \(outputs, samples, hyper\), see docs/own-loss.md; int is none."),
        ({"optimizer": optax.adam}, r"optimizer is a transformation of Optax, such as .*; function is none."),
    ],
)
def test_what_is_neither_is_refused(handed_in: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        trainer(tmp_path / "run", **handed_in)


def test_whether_an_optimizer_follows_the_rates_of_the_settings() -> None:
    params = {"actor": jnp.zeros(2), "critic": {"bias": jnp.zeros(1)}}
    assert follows_rates(OPTIMIZER, params)
    assert follows_rates(adam(0.5, 1e-5, True), params)
    assert not follows_rates(optax.adam(1e-3), params)
    assert not follows_rates(optax.chain(optax.clip(1.0), optax.sgd(1e-3)), params)


@pytest.mark.parametrize(
    ("optimizer", "named", "sentence"),
    [
        (optax.adam(1e-3), {"learning_rate": 1e-4}, "ppo.learning_rate has no effect .* Let proximo.scale_by_rates"),
        (optax.adam(1e-3), {"max_grad_norm": 1.0}, "ppo.max_grad_norm has no effect on an optimizer of your own"),
        (OPTIMIZER, {"adam_epsilon": 1e-8}, "ppo.adam_epsilon has no effect on an optimizer of your own"),
    ],
)
def test_settings_that_an_own_optimizer_does_not_read_are_refused(
    optimizer: Any, named: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        PPOTrainer(probes.MatchTheCue(), out=tmp_path / "run", preset=False, optimizer=optimizer, **FEW | named)


# Training


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("built-in") / "run"
    with probes.without_pictures():
        return path, trained(path)


@pytest.mark.slow
def test_the_same_loss_and_optimizer_give_the_same_bits(built_in: tuple[Path, Any], tmp_path: Path) -> None:
    """And a term without a weight is logged, and changes nothing."""
    one = trainer(tmp_path / "run", loss=own_loss, optimizer=adam(0.5, 1e-5, False))
    seen = []
    one.train(probes.EachUpdate(lambda metrics: seen.append(metrics["step_metrics"])))
    assert same(one.agent.params, built_in[1])
    # Of two actions that are nearly as likely, each surprises by log 2; so much is the entropy.
    assert seen[0]["loss/surprise"] == pytest.approx(np.log(2), abs=0.1)
    assert seen[0]["loss/entropy"] == pytest.approx(np.log(2), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("env", [None, "CartPole-v1"], ids=["compiled", "host"])
def test_a_run_with_its_own_loss_and_optimizer_goes_on(env: str | None, run: tuple[Path, Any], tmp_path: Path) -> None:
    more = {} if env is None else {"workers": 0}
    whole = run[1] if env is None else trained(tmp_path / "whole", env=env, **OWN, **more)

    def stop(metrics: dict[str, Any]) -> None:
        if metrics["update"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "run"
    assert trainer(path, env, **OWN, **more).train(probes.EachUpdate(stop))["stop_reason"] == "interrupted"
    resumed = PPOTrainer.resume(path, env or probes.MatchTheCue(), console=probes.Notes(), **OWN)
    assert resumed.train()["updates"] == 6
    assert same(resumed.agent.params, whole)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("own") / "run"
    with probes.without_pictures():
        return path, trained(path, **OWN)


@pytest.mark.slow
def test_the_settings_say_what_was_handed_in(run: tuple[Path, Any]) -> None:
    assert yaml.safe_load((run[0] / "config.yaml").read_text())["ppo"]["own"] == ["loss", "optimizer"]
    with pytest.raises(
        UserError, match=r"The loss is not a built-in one \(ppo.own\), and no file holds it; hand it in"
    ):
        PPOTrainer(probes.MatchTheCue(), config=run[0] / "config.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handed_in", "sentence"),
    [
        ({}, "The loss is not a built-in one .* hand it in again, as `loss=` of PPOTrainer or PPOTrainer.resume"),
        ({"loss": own_loss}, "The optimizer is not a built-in one"),
    ],
)
def test_a_run_does_not_go_on_without(handed_in: dict[str, Any], sentence: str, run: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match=sentence):
        PPOTrainer.resume(run[0], probes.MatchTheCue(), steps=32, **handed_in)


@pytest.mark.slow
def test_a_run_does_not_go_on_with_another_optimizer(run: tuple[Path, Any]) -> None:
    other = PPOTrainer.resume(run[0], probes.MatchTheCue(), steps=32, loss=own_loss, optimizer=optax.sgd(0.1))
    with pytest.raises(UserError, match=r"The optimizer that was handed in is not the one that .* was trained with"):
        other.train()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["loss", "optimizer"])
def test_a_built_in_one_is_not_replaced_on_the_way(part: str, built_in: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match=f"was trained with the built-in {part}, and goes on with that; leave out"):
        PPOTrainer.resume(built_in[0], probes.MatchTheCue(), steps=32, **{part: OWN[part]})


@pytest.mark.slow
def test_each_group_of_agents_has_a_state_of_its_own(tmp_path: Path) -> None:
    one = trainer(tmp_path / "run", team_probes.TwoKinds(), **OWN)
    one.train()
    agents = one.agent.groups
    params, obs_stats, reward_stats = ({name: getattr(own, part) for name, own in agents.items()} for part in PARTS)
    groups = one.program.init((params, obs_stats, reward_stats)).train.groups
    state = {name: own.opt_state for name, own in groups.items()}
    assert set(state) == {"sorter", "aimer"}
    structures = {name: jax.tree.structure(agents[name].params) for name in state}
    assert {name: jax.tree.structure(own[1].mu) for name, own in state.items()} == structures
    again = one.train()  # from its checkpoint, for as long again
    assert (again["updates"], again["resumed"]) == (12, [{"step": 192, "exact": True}])


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_named(tmp_path: Path) -> None:
    def bad(outputs: Outputs, samples: Samples, hyper: Hyper) -> Any:
        return {"mine": (1.0, jnp.log(-1 - jnp.square(outputs.value)))}

    with pytest.raises(TrainingError, match=r"In update 1 the loss/mine is not finite \(loss/mine = nan\)"):
        trainer(tmp_path / "stop", loss=bad).train()
    # Or undone: the policy stays as it was.
    one = trainer(tmp_path / "skip", loss=bad, on_nonfinite="skip", total_timesteps=64)
    before = jax.tree.map(np.asarray, one.agent.params)
    assert one.train()["skipped_updates"] == 2
    assert same(one.agent.params, before)


@pytest.mark.slow
def test_optimizers_with_numbers_of_their_own_are_saved_whole(tmp_path: Path) -> None:
    """Counts, keys and injected numbers, some of a weak type."""
    noisy = optax.chain(
        optax.add_noise(1e-3, 0.5, jax.random.key(7)), optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)
    )
    PPOTrainer(probes.MatchTheCue(), out=tmp_path / "run", preset=False, optimizer=noisy, **FEW).train()
    resumed = PPOTrainer.resume(tmp_path / "run", probes.MatchTheCue(), steps=64, optimizer=noisy)
    assert resumed.train()["updates"] == 4


# Experiments


SENT = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("env", [probes.MatchTheCue(), "CartPole-v1"], ids=["in threads", "in processes"])
def test_experiments_hand_it_to_every_run(env: Any, tmp_path: Path) -> None:
    out, own = tmp_path / "out", {"loss": own_loss, "optimizer": SENT}
    run_multiple_experiments(env, seeds=2, jobs=1, out=out, preset=False, mlflow=False, **FEW, **own)
    rows = list(out.rglob("metrics.jsonl"))
    assert len(rows) == 2
    assert all('"loss/surprise"' in file.read_text() for file in rows)
    with pytest.raises(UserError, match=r"has a loss that was handed in; hand it in again, with .*carry_out"):
        carry_out(Plan.load(out), out, env=env)


def test_what_cannot_be_sent_to_another_process_is_refused(tmp_path: Path) -> None:
    held = threading.Lock()
    loss = lambda *given: clip_loss(*given) if held else {}  # noqa: E731
    with pytest.raises(UserError, match="cannot be sent to the processes that train on CartPole-v1"):
        run_multiple_experiments("CartPole-v1", seeds=1, out=tmp_path / "out", mlflow=False, loss=loss, **FEW)


# The example


def test_the_objective_of_simple_policy_optimization() -> None:
    # r = 1.2 and eps = 0.2: A = 2 gives 2.4 - 2 / 0.4 * 0.04 = 2.2, where its slope 2 - 2 * 0.2 / 0.2 is zero.
    # r = 0.5, A = -1: -0.5 - 1 / 0.4 * 0.25 = -1.125.
    def numbers(*values: float) -> jax.Array:
        return jnp.asarray(np.array(values, np.float32))

    zeros = numbers(0, 0)

    def objective(log_ratio: jax.Array) -> Any:
        outputs = Outputs(zeros[:, None], zeros, log_ratio, zeros, zeros)
        samples = Samples(None, None, None, zeros, zeros, numbers(2, -1), zeros, zeros > -1)
        return example("own_loss").spo_loss(outputs, samples, Hyper(0.2, 0.0, 0.5, None))["objective"][1]

    log_ratio = jnp.log(numbers(1.2, 0.5))
    np.testing.assert_allclose(objective(log_ratio), [2.2, -1.125], rtol=1e-5)
    slopes = jax.grad(lambda given: objective(given).sum())(log_ratio)
    # -1 + 0.5 / 0.2 = 1.5 in r, times r.
    np.testing.assert_allclose(slopes, [0, 0.75], atol=1e-5)


@pytest.mark.slow
def test_simple_policy_optimization_learns(tmp_path: Path) -> None:
    settings = dict(
        num_envs=16, rollout_length=16, minibatch_size=64, epochs_per_update=4, learning_rate=3e-3, hidden_sizes=[32]
    )
    loss = example("own_loss").spo_loss
    one = trainer(tmp_path / "run", loss=loss, **settings, total_timesteps=12_800)
    one.train()
    assert one.agent.act(np.array([[1.0], [-1.0]])).tolist() == [1, 0]
