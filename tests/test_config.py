from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import proximo
from proximo.config import MINIBATCH, Config, EnvConfig, NetworkConfig, PPOConfig, TrainConfig, check, check_minibatch
from proximo.errors import UserError
from proximo.settings import SETTINGS, build, settle

ROOT = Path(proximo.__file__).parent


def config_with(num_envs: int = 8, total_timesteps: int = 1_000_000, **ppo: Any) -> Config:
    return Config(
        env=EnvConfig(num_envs=num_envs), ppo=PPOConfig(**ppo), train=TrainConfig(total_timesteps=total_timesteps)
    )


def refusal(config: Config, check: Callable[[Config], Any] = check) -> str:
    with pytest.raises(UserError) as caught:
        check(config)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


# ---- derived numbers


def test_derived_numbers() -> None:
    config = config_with(num_envs=4, rollout_length=32, minibatch_size=16, total_timesteps=1_000)
    assert config.frames_per_batch == 128
    assert config.num_updates == 8  # 7 updates give 896 steps, 8 give 1024


@pytest.mark.parametrize(("total", "updates"), [(1, 1), (127, 1), (128, 1), (129, 2), (256, 2), (2**60 + 1, 2**53 + 1)])
def test_updates_are_rounded_up_exactly(total: int, updates: int) -> None:
    assert config_with(num_envs=4, rollout_length=32, total_timesteps=total).num_updates == updates


def test_config_is_frozen_and_hashable() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    assert hash(config) == hash(Config())
    assert config == Config()
    assert config != Config(seed=1)


# ---- settings that do not fit together


def test_defaults_fit_together() -> None:
    assert check(Config()) == Config()


def test_minibatch_that_does_not_divide_names_the_numbers_and_the_nearest_sizes() -> None:
    text = refusal(config_with(num_envs=3, rollout_length=100, minibatch_size=64), check_minibatch)
    assert "ppo.minibatch_size=64" in text
    assert "300 samples" in text
    assert "env.num_envs=3 * ppo.rollout_length=100" in text
    assert text.endswith("the nearest sizes that do: 50, 60, 75.")


def test_minibatch_larger_than_the_rollout_is_refused() -> None:
    text = refusal(config_with(num_envs=1, rollout_length=16, minibatch_size=64), check_minibatch)
    assert "ppo.minibatch_size=64 does not divide the 16 samples" in text
    assert text.endswith("4, 8, 16.")


def test_suggested_sizes_are_accepted() -> None:
    for size in (50, 60, 75):
        check_minibatch(config_with(num_envs=3, rollout_length=100, minibatch_size=size))


def test_refusing_a_huge_rollout_does_not_try_every_number() -> None:
    text = refusal(config_with(num_envs=1_000_000, rollout_length=1_000, minibatch_size=7), check_minibatch)
    assert text.endswith("4, 5, 8.")


def test_minibatch_of_one_has_nothing_to_standardise() -> None:
    text = refusal(config_with(minibatch_size=1))
    assert "ppo.minibatch_size=1" in text
    assert "ppo.normalize_advantages=minibatch" in text


@pytest.mark.parametrize("normalize", ["batch", "none"])
def test_minibatch_of_one_is_fine_otherwise(normalize: str) -> None:
    check(config_with(minibatch_size=1, normalize_advantages=normalize))


@pytest.mark.parametrize("name", ["learning_rate", "clip_epsilon", "entropy_coef"])
def test_end_without_a_schedule_is_refused(name: str) -> None:
    given: dict[str, Any] = {f"{name}_end": 0.001, f"{name}_schedule": "constant"}
    text = refusal(config_with(**given))
    assert f"ppo.{name}_end=0.001" in text
    assert f"ppo.{name}_schedule=constant" in text


@pytest.mark.parametrize("name", ["learning_rate", "clip_epsilon", "entropy_coef"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_end_with_a_schedule_is_fine(name: str, schedule: str) -> None:
    given: dict[str, Any] = {f"{name}_end": 0.001, f"{name}_schedule": schedule}
    check(config_with(**given))


def test_adaptive_learning_rate_has_no_end() -> None:
    text = refusal(config_with(learning_rate_end=1e-5, learning_rate_schedule="adaptive"))
    assert "ppo.learning_rate_end=1e-05" in text
    assert "ppo.learning_rate_schedule=adaptive" in text


def test_critic_learning_rate_needs_separate_optimizers() -> None:
    text = refusal(config_with(critic_learning_rate=0.001))
    assert "ppo.critic_learning_rate=0.001" in text
    assert "ppo.optimizers=separate" in text
    check(config_with(critic_learning_rate=0.001, optimizers="separate"))


@pytest.mark.parametrize("target", [0.005, 0.01])
def test_target_kl_must_leave_room_for_the_adaptive_rate(target: float) -> None:
    text = refusal(config_with(learning_rate_schedule="adaptive", target_kl=target))
    assert f"ppo.target_kl={target}" in text
    assert "ppo.adaptive_kl=0.01" in text


def test_target_kl_above_adaptive_kl_or_without_it_is_fine() -> None:
    check(config_with(learning_rate_schedule="adaptive", target_kl=0.02))
    check(config_with(target_kl=0.005))


@pytest.mark.parametrize(("name", "value"), [("std", "state"), ("initial_std", 0.5)])
def test_beta_has_no_standard_deviation(name: str, value: str | float) -> None:
    given: dict[str, Any] = {name: value}
    text = refusal(Config(network=NetworkConfig(continuous="beta", **given)))
    assert f"network.{name}={value} has no effect with network.continuous=beta" in text
    check(Config(network=NetworkConfig(**given)))
    check(Config(network=NetworkConfig(continuous="beta")))


def test_a_shared_torso_has_one_optimizer() -> None:
    shared = NetworkConfig(torso="shared")
    text = refusal(Config(network=shared, ppo=PPOConfig(optimizers="separate")))
    assert "ppo.optimizers=separate" in text
    assert "network.torso" in text
    check(Config(network=shared))


# ---- declarations


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_explains_itself(path: str) -> None:
    help = SETTINGS[path].help
    assert help.endswith(".")
    assert help[0].isupper()
    assert "\n" not in help


@pytest.mark.parametrize("path", SETTINGS)
def test_every_limit_is_a_finite_number(path: str) -> None:
    limits = [SETTINGS[path].metadata[name] for name in ("at_least", "at_most", "above")]
    assert all(limit is None or math.isfinite(limit) for limit in limits)


# ---- every setting is read: a setting that nothing reads is a promise not kept


def attribute_reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The `(owner, name)` of every `owner.name` that is read, where owner is the name just before the dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Name):
                yield node.value.id, node.attr
            elif isinstance(node.value, ast.Attribute):
                yield node.value.attr, node.attr


def properties_of_config() -> dict[str, set[tuple[str, str]]]:
    tree = ast.parse((ROOT / "config.py").read_text(encoding="utf-8"))
    config = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    return {node.name: set(attribute_reads(node)) for node in config.body if isinstance(node, ast.FunctionDef)}


def settings_read_by(sources: Iterable[str]) -> set[str]:
    """The paths that `sources` read: `ppo.gamma` under any prefix, `config.seed`, and what the properties of
    Config read that are themselves read. That check() compares a setting does not make it used."""
    reads = {read for source in sources for read in attribute_reads(ast.parse(source))}
    properties = properties_of_config()
    waiting = [name for owner, name in reads if owner == "config" and name in properties]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            reads |= properties[name]
            waiting += [inner for owner, inner in properties[name] if owner == "self" and inner in properties]
    paths = {name if owner == "config" else f"{owner}.{name}" for owner, name in reads}
    return paths & set(SETTINGS)


def test_the_reader_of_settings() -> None:
    assert settings_read_by(["f(config.ppo.gamma, self.config.env.num_envs)"]) == {"ppo.gamma", "env.num_envs"}
    assert settings_read_by(["def loss(ppo): return ppo.clip_value"]) == {"ppo.clip_value"}
    assert settings_read_by(["key(self.config.seed)"]) == {"seed"}
    assert settings_read_by(["seed = args.seed; gamma = 'ppo.gamma'"]) == set()
    assert settings_read_by(["n = config.num_updates"]) == {
        "train.total_timesteps",
        "env.num_envs",
        "ppo.rollout_length",
    }


def test_every_setting_is_read() -> None:
    left_out = {ROOT / "config.py", ROOT / "settings.py"}
    sources = [path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py")) if path not in left_out]
    read = settings_read_by(sources)
    unread = [path for path in SETTINGS if path not in read]
    assert not unread, f"nothing reads: {', '.join(unread)}"


@pytest.mark.parametrize(
    ("num_envs", "rollout_length", "size"),
    [(1, MINIBATCH, MINIBATCH), (1, 6, 6), (1, MINIBATCH + 2, (MINIBATCH + 2) // 2), (3, 3 * MINIBATCH, MINIBATCH)],
)
def test_an_open_minibatch_is_the_largest_that_fits(num_envs: int, rollout_length: int, size: int) -> None:
    config = build({"env.num_envs": num_envs, "ppo.rollout_length": rollout_length})
    assert config.minibatch_size == size
    assert num_envs * rollout_length % size == 0
    assert settle(config, continuous=False).ppo.minibatch_size == size


def test_minibatches_count_samples_of_all_agents_that_share_a_policy() -> None:
    """4 environments * 10 steps: 120 samples of a group of three, 40 of a single agent."""
    config = config_with(num_envs=4, rollout_length=10, minibatch_size=60)
    check_minibatch(config, [3])
    with pytest.raises(UserError, match=r"=60 does not divide the 40 samples .* \* ppo.rollout_length=10\);"):
        check_minibatch(config, [3, 1])
    with pytest.raises(UserError, match=r"=50 does not divide the 120 .*=10 \* 3 agents\); .* 30, 40, 60\."):
        check_minibatch(config_with(num_envs=4, rollout_length=10, minibatch_size=50), [3])


@pytest.mark.parametrize(("members", "size"), [([1], 40), ([3], 120), ([3, 1], 40), ([2, 4], 80), ([10], 200)])
def test_an_open_minibatch_fits_every_group(members: list[int], size: int) -> None:
    """4 environments * 10 steps, up to 256 samples: the largest divisor of 40, of 120, of both 120 and 40, ..."""
    config = build({"env.num_envs": 4, "ppo.rollout_length": 10})
    assert settle(config, continuous=False, members=members).ppo.minibatch_size == size
