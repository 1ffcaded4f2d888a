"""One program serves all runs that differ in numbers alone, and each number reaches it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import proximo.compile
from proximo import Config, PPOTrainer, settings
from proximo.envs.groups import ONE
from proximo.ppo.static_config import merge, split_static
from proximo.train.program import CompiledProgram, ProgramState, train_step

ENV = "gymnax/CartPole-v1"
SMALL = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 8, "epochs_per_update": 2, "hidden_sizes": (8,)}
BUSY = {  # settings with which every number matters
    "ppo.learning_rate_schedule": "linear",
    "ppo.clip_epsilon_schedule": "linear",
    "ppo.entropy_coef": 0.01,
    "ppo.entropy_coef_schedule": "cosine",
    "ppo.optimizers": "separate",
    "ppo.critic_learning_rate": 1e-3,
    "ppo.clip_value": 0.01,
    "ppo.target_kl": 1e-12,
    "ppo.max_grad_norm": 0.01,
    "ppo.clip_epsilon": 1e-4,
    "ppo.clip_epsilon_end": 1e-5,
    "ppo.learning_rate_end": 1e-5,
    "normalize.rewards": True,
    "normalize.clip_rewards": 0.5,
    "track.success_return": 9.0,
}
CHANGED = {
    "ppo.learning_rate": 1e-2,
    "ppo.learning_rate_end": 1e-4,
    "ppo.critic_learning_rate": 1e-2,
    "ppo.gamma": 0.5,
    "ppo.gae_lambda": 0.5,
    "ppo.clip_epsilon": 1e-3,
    "ppo.clip_epsilon_end": 9e-5,
    "ppo.clip_value": 1e-4,
    "ppo.entropy_coef": 0.5,
    "ppo.entropy_coef_end": 0.2,
    "ppo.value_coef": 0.1,
    "ppo.max_grad_norm": 0.001,
    "ppo.target_kl": 10.0,
    "ppo.adam_epsilon": 1e-1,
    "normalize.clip_rewards": 0.25,
    "track.success_return": 1000.0,
    "ppo.adaptive_kl": 1e-9,
}
BESIDES: dict[str, dict[str, Any]] = {  # what else must be so that a number matters
    "ppo.adaptive_kl": {
        "ppo.learning_rate_schedule": "adaptive",
        "ppo.learning_rate_end": 0.0,
        "ppo.target_kl": None,
    },
    "normalize.clip_rewards": {"normalize.rewards": False},
}


def config_of(**values: Any) -> Config:
    return settings.build({"env.id": ENV}, settings.from_keywords(SMALL | {"total_timesteps": 640}), BUSY | values)


def outcome(config: Config) -> list[np.ndarray]:
    """Every number that some updates lead to."""
    trainer = PPOTrainer(config=config, preset=False)
    state, reports = trainer.program.run(start(trainer), 12)
    numbers = [(report.metrics, report.episodes) for report in reports]
    learner = state.train.groups[ONE]
    return [np.asarray(leaf) for leaf in jax.tree.leaves((learner.params, learner.learning_rate, numbers))]


def start(trainer: PPOTrainer) -> ProgramState:
    return trainer.program.init(({ONE: trainer.agent.params}, {ONE: trainer.agent.obs_stats}, {}))


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def test_every_number_is_changed_below() -> None:
    numbers = split_static(config_of())[1]
    assert {f"{section}.{name}" for section in numbers for name in numbers[section]} == set(CHANGED)


@pytest.fixture(scope="module")
def plain() -> list[np.ndarray]:
    return outcome(config_of())


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED)
def test_each_number_reaches_the_program(name: str, plain: list[np.ndarray]) -> None:
    besides = BESIDES.get(name, {})
    before = outcome(config_of(**besides)) if besides else plain
    assert not same(before, outcome(config_of(**besides, **{name: CHANGED[name]})))


def test_the_same_again_gives_the_same(plain: list[np.ndarray]) -> None:
    assert same(plain, outcome(config_of()))


@pytest.mark.slow
def test_numbers_as_arguments_are_the_numbers_of_the_settings() -> None:
    """One update by the shared program, and by one that was compiled with the settings themselves."""
    config = config_of()
    trainer = PPOTrainer(config=config, preset=False)
    program = trainer.program
    assert isinstance(program, CompiledProgram)
    state = start(trainer)
    ours = program.run(state, 1)[0].train.of("params")
    alone = jax.jit(lambda state: train_step(state, program.runner, config)[0])(state).train.of("params")
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-6)


@pytest.mark.slow
def test_runs_that_differ_in_numbers_and_seeds_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = proximo.compile.jit

    def counted(*given: Any, **options: Any) -> Any:
        made.append(given)
        return original(*given, **options)

    for module in ("compile", "rollout.evaluate", "policy.agents", "policy.agent"):
        monkeypatch.setattr(f"proximo.{module}.jit", counted)
    first = config_of(**{"env.num_envs": 2})
    outcome(first)
    before = len(made)
    assert before > 0
    for seed, name in enumerate(list(CHANGED)[:3]):
        outcome(dataclasses.replace(config_of(**{"env.num_envs": 2, name: CHANGED[name]}), seed=seed))
    # What is made anew for each agent is not compiled before it is called: `act` and `value`, which nobody did.
    assert len(made) - before == 2 * 3


def test_a_shape_holds_no_numbers_and_nothing_that_programs_do_not_read() -> None:
    first = config_of(**{"train.max_seconds": 3.0, "eval.episodes": 3})
    other = dataclasses.replace(config_of(**{"ppo.gamma": 0.5, "env.timeout": 5.0}), seed=3)
    assert split_static(first)[0] == split_static(other)[0]
    assert split_static(config_of(**{"ppo.clip_value": None}))[0] != split_static(first)[0]
    assert split_static(config_of(**{"ppo.epochs_per_update": 3}))[0] != split_static(first)[0]


def test_the_length_of_a_run_is_part_of_its_shape_only_where_a_schedule_needs_it() -> None:
    plain = settings.build({"ppo.learning_rate_schedule": "constant"})
    longer = dataclasses.replace(plain, train=dataclasses.replace(plain.train, total_timesteps=5_000_000))
    assert split_static(plain)[0] == split_static(longer)[0]
    moving = [settings.build({"ppo.learning_rate_schedule": "linear"}, base=one) for one in (plain, longer)]
    assert split_static(moving[0])[0] != split_static(moving[1])[0]


def test_merging_undoes_splitting() -> None:
    config = config_of()
    back = merge(*split_static(config))
    assert vars(back.ppo) == vars(config.ppo) | split_static(config)[1]["ppo"]
    assert back.ppo.gamma == np.float32(config.ppo.gamma)
