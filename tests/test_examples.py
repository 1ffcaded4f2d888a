"""The examples run, for a few updates."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contracts.host import check_contract
from made import host_source
from proximo import PPOTrainer
from proximo.config import EnvConfig
from proximo.errors import UserError
from proximo.policy.observation import Features

FOLDER = Path(__file__).parent.parent / "examples"
FEW: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=16,
    minibatch_size=64,
    epochs_per_update=1,
    total_timesteps=128,
    eval_frequency=0,
    eval_episodes=1,
    max_steps_per_episode=50,
    preset=False,
)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(first: Any, second: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), first, second)))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["linen", pytest.param("nnx", marks=pytest.mark.learning), "equinox"])
def test_own_networks_train_and_are_loaded_again(library: str, tmp_path: Path) -> None:
    pytest.importorskip("equinox" if library == "equinox" else "flax")
    example = load(f"own_network_{library}")
    agent = example.main(out=tmp_path / "run", **FEW)
    assert agent.act(np.zeros(4)) in (0, 1)
    with pytest.raises(UserError, match="networks are not built-in ones: hand in again what they were made with"):
        PPOTrainer.resume(tmp_path / "run", steps=64)
    resumed = PPOTrainer.resume(tmp_path / "run", steps=64, network=example.network)
    assert same({name: resumed.agent.params[name] for name in agent.params}, agent.params)
    if library == "equinox":
        assert resumed.train()["total_steps"] == 192


@pytest.mark.slow
def test_a_frozen_encoder_stays_as_it_came(tmp_path: Path) -> None:
    encoder, agent = load("pretrained_encoder").main(num_updates=20, out=tmp_path / "run", **FEW)
    for name in ("actor", "critic"):
        assert same(encoder, agent.params[name]["encoder"])
        assert agent.params[name]["hidden"]["bias"].any()


@pytest.mark.slow
@pytest.mark.parametrize("finetune", [False, True])
def test_gradients_reach_the_encoder_where_it_is_trained_on(finetune: bool) -> None:
    example = load("pretrained_encoder")
    encoder = example.layer(jax.random.key(0), example.PIXELS, example.WIDTH)
    critic = example.encoded_network(encoder, 1, finetune)
    seen = Features(jnp.zeros((2, 0)), (jnp.ones((2, 10, 10, 4)),))
    params, carry = critic.init(jax.random.key(1), seen)
    slopes = jax.grad(lambda params: critic.apply(params, carry, seen)[1].sum())(params)
    assert bool(slopes["encoder"]["kernel"].any()) is finetune
    assert slopes["hidden"]["kernel"].any()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["loss", "optimizer"])
def test_own_losses_and_optimizers_train_and_go_on(part: str, tmp_path: Path) -> None:
    resumed = load(f"own_{part}").main(out=tmp_path / "run", **FEW)
    assert resumed.config.ppo.own == (part,)
    assert resumed.train()["total_steps"] == 128 + 1024


@pytest.mark.slow
def test_the_battle_is_trained(tmp_path: Path) -> None:
    pytest.importorskip("magent2", reason="MAgent2 is not installed")
    few = dict(
        total_timesteps=64,
        num_envs=2,
        rollout_length=16,
        minibatch_size=16,
        epochs_per_update=1,
        hidden_sizes=[8],
        max_steps_per_episode=20,
        video=False,
        workers=0,
    )
    result = load("battle").main(out=tmp_path / "run", eval_episodes=2, eval_frequency=0, verbose=False, **few)
    assert result["total_steps"] == 64
    assert 0 <= result["final_eval"]["win_rate"] <= 1


@pytest.mark.slow
def test_a_privileged_critic_is_told_the_wind(tmp_path: Path) -> None:
    agent = load("privileged_critic").main(out=tmp_path / "run", workers=0, **FEW).agent
    assert np.isfinite(agent.value(3, critic_state=[1.0]))
    assert agent.act(3) in (0, 1)


@pytest.mark.slow
def test_a_family_makes_what_it_names(tmp_path: Path) -> None:
    family = load("environment_family")
    assert family.names() == ["short", "long"]
    env = family.make("short")
    assert env.spec.id == "corridors/short"
    assert PPOTrainer(env, out=tmp_path / "run", **FEW).train()["total_steps"] == 128


@pytest.mark.slow
def test_rockets_are_trained_and_keep_the_contract(tmp_path: Path) -> None:
    example = load("vector_environment")
    check_contract(host_source(example.Rockets), EnvConfig(max_steps_per_episode=7), steps=20)
    assert example.main(out=tmp_path / "run", **FEW)["total_steps"] == 128


@pytest.mark.slow
def test_every_example_is_run() -> None:
    run = {"own_network_linen", "own_network_nnx", "own_network_equinox", "pretrained_encoder", "battle"}
    run |= {"own_loss", "own_optimizer", "privileged_critic", "environment_family", "vector_environment"}
    assert {file.stem for file in FOLDER.glob("*.py")} == run
