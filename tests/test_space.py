"""What is searched: ranges and choices that settings allow, and what they make of a run."""

from __future__ import annotations

from typing import Any

import pytest

import team_probes
from proximo import settings
from proximo.config import Config
from proximo.envs import make
from proximo.envs.grouping import with_groups
from proximo.envs.groups import Groups
from proximo.errors import UserError
from proximo.tuning.space import (
    Dimension,
    check_space,
    configure,
    default_space,
    from_mapping,
    num_shapes,
    params_of,
    to_mapping,
)
from proximo.yaml_file import parse

JAX = "gymnax/CartPole-v1"
BASE = settings.build({"env.id": JAX, "env.num_envs": 4, "ppo.rollout_length": 16})
SOURCE = make(JAX)


def groups_of(config: Config) -> Groups:
    return with_groups(SOURCE, config.agents).spec.groups


def read(text: str) -> Any:
    return from_mapping(parse(text), "space.yaml")


def test_every_form_is_read_and_written_back() -> None:
    space = read(
        """
        ppo.learning_rate: {log: [1e-5, 2e-3]}
        1 - ppo.gamma: {log: [1e-4, 3e-2]}
        ppo: {value_coef: {uniform: [0.25, 1]}, epochs_per_update: {int: [1, 20]}}
        ppo.minibatch_size: {minibatches: [2, 4]}
        network.hidden_sizes: {choices: [[64, 64], [256]]}
        network.memory_size: {choices: [8, 16], when: {network.memory: [gru, lstm]}}
        """
    )
    assert space[0] == Dimension("ppo.learning_rate", "log", 1e-5, 2e-3)
    assert space[1] == Dimension("ppo.gamma", "log", 1e-4, 3e-2, complement=True)
    assert [dimension.name for dimension in space[:5]] == [
        "ppo.learning_rate", "1 - ppo.gamma", "ppo.value_coef", "ppo.epochs_per_update", "minibatches",
    ]  # fmt: skip
    assert space[5].choices == ((64, 64), (256,))
    assert space[6].when == (("network.memory", ("gru", "lstm")),)
    assert from_mapping(to_mapping(space), "again") == space


def test_a_point_becomes_settings() -> None:
    space = read(
        """
        1 - ppo.gamma: {log: [1e-4, 0.5]}
        ppo.rollout_length: {choices: [16, 32]}
        ppo.minibatch_size: {minibatches: [2, 4]}
        network.hidden_sizes: {choices: [[64, 64], [256]]}
        """
    )
    params = {"1 - ppo.gamma": 0.25, "ppo.rollout_length": 32, "minibatches": 4, "network.hidden_sizes": (256,)}
    config = configure(BASE, space, params, groups_of)
    assert (config.ppo.gamma, config.ppo.rollout_length, config.network.hidden_sizes) == (0.75, 32, (256,))
    assert config.ppo.minibatch_size == 4 * 32 // 4
    assert config.ppo.learning_rate == BASE.ppo.learning_rate


def test_the_settings_themselves_are_a_point_as_far_as_they_lie_in_the_space() -> None:
    space = read(
        """
        ppo.learning_rate: {log: [1e-5, 2e-3]}
        ppo.entropy_coef: {log: [1e-8, 0.1]}
        ppo.minibatch_size: {minibatches: [1, 4]}
        """
    )
    base = settings.build({"ppo.learning_rate": 1e-6, "ppo.entropy_coef": 0.0}, base=BASE)  # of 64 samples, a minibatch
    assert params_of(base, space, groups_of) == ({"ppo.entropy_coef": 1e-8, "minibatches": 1}, ["ppo.learning_rate"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ppo.learning_rat: {log: [1e-5, 1e-3]}",
            "There is no setting ppo.learning_rat; did you mean ppo.learning_rate",
        ),
        ("ppo.lr: {log: [1e-5, 1e-3]}", "Proximo calls it ppo.learning_rate"),
        ("ppo.gamma: {uniform: [0.9, 1.5]}", "ppo.gamma must be at most 1, not 1.5"),
        ("1 - ppo.gamma: {log: [0.1, 3]}", "ppo.gamma must be at least 0, not -2"),
        ("ppo.learning_rate: {log: [0, 1e-3]}", "above 0"),
        ("ppo.learning_rate: {log: [1e-3, 1e-5]}", "low < high"),
        ("ppo.learning_rate: [1e-3, 1e-5]", "must have one of log, uniform, int, choices, minibatches"),
        ("ppo.learning_rate: {log: [a, b]}", "a range of numbers, not 'a'"),
        ("ppo.rollout_length: {uniform: [1, 5]}", "whole number, and takes int"),
        ("ppo.rollout_length: {int: [1.5, 5]}", "of whole numbers"),
        ("network.activation: {choices: [tanh, relux]}", "network.activation must be one of"),
        ("network.activation: {log: [1, 2]}", "network.activation must be one of"),
        ("ppo.clip_epsilon: {choices: [0.1, 0.1]}", "lists the choice 0.1 twice"),
        ("ppo.gamma: {minibatches: [1, 2]}", "minibatches is for ppo.minibatch_size"),
        ("1 - ppo.gamma: {choices: [0.1, 0.2]}", "must have log or uniform"),
        ("env.id: {choices: [CartPole-v1]}", "env.id cannot be searched"),
        ("train.total_timesteps: {int: [1, 2]}", "train.total_timesteps cannot be searched"),
        ("ppo.gamma: {choices: [0.9], when: {network.memory: gru}, then: 1}", "must have one of"),
        ("ppo.gamma: {choices: [0.9], when: {network.memory: never}}", "network.memory must be one of"),
        ("{ppo: {gamma: {choices: [0.9]}}, ppo.gamma: {choices: [0.8]}}", "ppo.gamma is given twice"),
        (
            "{ppo.gamma: {choices: [0.9], when: {ppo.gae_lambda: 1}},"
            " ppo.gae_lambda: {choices: [1], when: {ppo.gamma: 1}}}",
            "depend on each other",
        ),
        ("[1, 2]", "must hold settings with what is searched"),
    ],
)
def test_what_no_setting_takes_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read(text)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("space.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ppo.minibatch_size: {choices: [16, 48]}", "ppo.minibatch_size=48 does not divide the 64 samples"),
        ("ppo.minibatch_size: {minibatches: [2, 3]}", "3 minibatches do not divide the 64 samples"),
        (
            "{ppo.rollout_length: {choices: [16, 10]}, ppo.minibatch_size: {choices: [16]}}",
            "does not divide the 40 samples",
        ),
        ("ppo.rollout_length: {int: [16, 31]}\nppo.minibatch_size: {choices: [64]}", "does not divide the 124 samples"),
        ("{network.torso: {choices: [shared]}, ppo.optimizers: {choices: [separate]}}", "share nothing"),
        ("agents.critic: {choices: [central]}", "is for environments with many agents"),
    ],
)
def test_a_point_that_cannot_be_trained_is_found_before_training(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=r"space.yaml has a point that cannot be trained") as refused:
        check_space(read(text), BASE, groups_of, "space.yaml")
    assert sentence in str(refused.value)


def test_conditions_keep_points_apart_that_do_not_go_together() -> None:
    space = read(
        """
        ppo.optimizers: {choices: [shared, separate], when: {network.torso: separate}}
        network.torso: {choices: [separate, shared]}
        """
    )
    assert [dimension.path for dimension in space] == ["network.torso", "ppo.optimizers"]
    check_space(space, BASE, groups_of, "space.yaml")


def test_numbers_share_a_program_and_sizes_do_not() -> None:
    numbers = read("{ppo.learning_rate: {log: [1e-5, 1e-3]}, ppo.clip_epsilon: {choices: [0.1, 0.2]}}")
    assert num_shapes(numbers, BASE, groups_of) == 1
    sizes = read("{ppo.rollout_length: {choices: [16, 32]}, network.hidden_sizes: {choices: [[8], [16], [32]]}}")
    assert num_shapes(sizes, BASE, groups_of) == 6
    assert num_shapes(read("network.initial_std: {log: [0.1, 1]}"), BASE, groups_of) is None


KINDS = {
    JAX: {"network.hidden_sizes", "normalize.observations"},
    "Pendulum-v1": {"network.hidden_sizes", "normalize.observations", "network.initial_std"},
    "gymnax/Breakout-MinAtar": {"network.hidden_sizes"},
}


@pytest.mark.parametrize("env", KINDS)
def test_every_kind_of_environment_has_a_space_that_holds_the_defaults(env: str) -> None:
    source, base = make(env), settings.build({"env.id": env})

    def groups(config: Config) -> Groups:
        return with_groups(source, config.agents).spec.groups

    space = default_space(base, groups(base))
    check_space(space, base, groups, "the default space")
    named = {dimension.path for dimension in space}
    assert {path for path in named if path.startswith(("network.", "agents.", "normalize.obs"))} == KINDS[env]
    assert {"ppo.learning_rate", "ppo.gamma", "ppo.gae_lambda", "ppo.minibatch_size", "ppo.rollout_length"} <= named
    assert params_of(base, space, groups)[1] == []


def test_memory_and_many_agents_have_dimensions_of_their_own() -> None:
    base = settings.build({"network.memory": "gru"}, base=BASE)
    space = default_space(base, groups_of(base))
    check_space(space, base, groups_of, "the default space")
    assert "network.memory_size" in {dimension.path for dimension in space}


def test_many_agents_may_have_central_critics() -> None:
    source, base = make(team_probes.Weather()), settings.build({"env.num_envs": 4})

    def groups(config: Config) -> Groups:
        return with_groups(source, config.agents).spec.groups

    space = default_space(base, groups(base))
    check_space(space, base, groups, "the default space")
    assert "agents.critic" in {dimension.path for dimension in space}
    params = {"minibatches": 4, "ppo.rollout_length": 32, "agents.critic": "central"}
    config = configure(base, space, params, groups)
    assert config.ppo.minibatch_size == 4 * 32 * 2 // 4  # the samples of both
    assert config.agents.critic == "central"
