from __future__ import annotations

import dataclasses
import datetime
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proximo import settings
from proximo.config import MAX_SEED, Config, EnvConfig, NetworkConfig, PPOConfig
from proximo.errors import UserError
from proximo.presets import choose_preset
from proximo.settings import (
    DIFFERENCES,
    FOREIGN_NAMES,
    SETTINGS,
    Setting,
    build,
    convert,
    find_keyword,
    find_setting,
    from_assignments,
    from_file,
    from_keywords,
    from_mapping,
    settle,
    to_mapping,
    to_yaml,
)
from proximo.yaml_file import FLOAT

SECTIONS = {path.partition(".")[0] for path in SETTINGS if "." in path}


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """What the user is told: one line that ends as a sentence does."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert not text.endswith("..")
    return text


def assign(text: str) -> dict[str, Any]:
    return from_assignments([text])


# ---- defaults


@pytest.mark.parametrize(
    ("path", "default"),
    [
        ("ppo.gamma", 0.99),
        ("ppo.gae_lambda", 0.95),
        ("ppo.learning_rate", 3e-4),
        ("ppo.clip_epsilon", 0.2),
        ("ppo.entropy_coef", 0.01),
        ("ppo.value_coef", 0.5),
        ("ppo.max_grad_norm", 0.5),
        ("ppo.epochs_per_update", 10),
        ("stop.convergence_window", 100),
        ("stop.early_stopping_patience", 10),
        ("stop.target_reward", None),
        ("eval.frequency", 50),
        ("eval.episodes", 10),
        ("train.max_episodes", None),
        ("env.max_steps_per_episode", None),
    ],
)
def test_the_contracts_values_have_a_name(path: str, default: float | None) -> None:
    section, name = path.split(".")
    assert to_mapping(build(choose_preset("documents", "CartPole-v1")))[section][name] == default


def test_minibatches_without_memory_are_an_eighth_of_the_default_update() -> None:
    assert (build().frames_per_batch, build().minibatch_size) == (2048, 256)
    assert build(assign("ppo.minibatch_size=auto")).minibatch_size == 256


@pytest.mark.parametrize("path", SETTINGS)
def test_every_default_is_a_valid_value(path: str) -> None:
    converted = convert(SETTINGS[path], SETTINGS[path].default)
    assert converted == SETTINGS[path].default
    assert type(converted) is type(SETTINGS[path].default)


# ---- writing and reading back


def positive(highest: float) -> st.SearchStrategy[float]:
    return st.floats(1e-8, highest)


def named_agents() -> st.SearchStrategy[dict[str, tuple[str, ...]]]:
    return st.dictionaries(st.text(), st.lists(st.text()).map(tuple), min_size=1)


def plain_data() -> st.SearchStrategy[Any]:
    """What arguments of environments are made of."""
    leaf: st.SearchStrategy[Any] = (
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.from_regex(FLOAT)
    )
    leaf |= st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["2024-01-31", "1_000", "0x1f", "yes"])
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@st.composite
def valid_values(draw: st.DrawFn) -> dict[str, Any]:
    """Values for every setting, that also fit together."""
    size, schedule = draw(st.integers(2, 512)), st.sampled_from(["linear", "cosine"])
    values = {
        "seed": draw(st.integers(0, MAX_SEED)),
        "env.id": draw(st.text()),
        "env.kwargs": draw(st.none() | st.dictionaries(st.text(), plain_data(), min_size=1, max_size=3)),
        "env.wrappers": draw(st.sampled_from([(), ("a.b:C",), ({"name": "a.b.C", "x": 1.0}, "a:C.D")])),
        "env.num_envs": draw(st.integers(1, 64)),
        "env.workers": draw(st.just("auto") | st.integers(0, 255)),
        "env.groups": draw(st.integers(1, 64)),
        "env.timeout": draw(positive(1e6)),
        "env.on_error": draw(st.sampled_from(["stop", "restart"])),
        "env.max_restarts": draw(st.integers(0, 1000)),
        "env.replay_limit": draw(st.integers(0, 10**9)),
        "env.start_method": draw(st.sampled_from(["forkserver", "spawn", "fork"])),
        "env.max_steps_per_episode": draw(st.none() | st.integers(1, 10**9)),
        "env.frame_stack": draw(st.integers(1, 64)),
        "ppo.rollout_length": size * draw(st.integers(1, 8)),
        "ppo.epochs_per_update": draw(st.integers(1, 100)),
        "ppo.minibatch_size": size,
        "ppo.sequence_length": draw(st.sampled_from([None, 1, size])),
        "ppo.critic_learning_rate": draw(st.none() | positive(1)),
        "ppo.optimizers": "separate",
        "ppo.adaptive_kl": draw(positive(0.5)),
        "ppo.target_kl": draw(st.none() | st.floats(0.6, 10)),
        "ppo.gamma": draw(st.floats(0, 1)),
        "ppo.gae_lambda": draw(st.floats(0, 1)),
        "ppo.clip_value": draw(st.none() | positive(1e6)),
        "ppo.value_coef": draw(st.floats(0, 1e6)),
        "ppo.max_grad_norm": draw(st.none() | positive(1e6)),
        "ppo.normalize_advantages": draw(st.sampled_from(["minibatch", "batch", "none"])),
        "ppo.adam_epsilon": draw(positive(1)),
        "ppo.recompute_advantages": draw(st.booleans()),
        "ppo.own": draw(st.sampled_from([(), ("loss",), ("optimizer",), ("loss", "optimizer")])),
        "network.hidden_sizes": tuple(draw(st.lists(st.integers(1, 4096), max_size=4))),
        "network.activation": draw(st.sampled_from(["tanh", "relu", "elu", "gelu", "silu"])),
        "network.torso": "separate",
        "network.memory": draw(st.sampled_from(["none", "gru", "lstm"])),
        "network.memory_size": draw(st.integers(1, 4096)),
        "network.layer_norm": draw(st.booleans()),
        "network.cnn": draw(st.sampled_from(["auto", "small", "nature", "impala"])),
        "network.embed": draw(st.none() | st.integers(1, 4096)),
        "network.continuous": draw(st.sampled_from(["gaussian", "tanh_gaussian"])),
        "network.std": draw(st.sampled_from(["free", "state"])),
        "network.initial_std": draw(positive(100)),
        "normalize.observations": draw(st.booleans()),
        "normalize.rewards": draw(st.booleans()),
        "normalize.clip_rewards": draw(st.none() | positive(1e6)),
        "agents.policy": "groups",
        "agents.members": draw(st.none() | named_agents()),
        "agents.identity": draw(st.booleans()),
        "agents.critic": draw(st.sampled_from(["own", "central"])),
        "agents.reward": draw(st.sampled_from(["own", "team"])),
        "agents.selfplay": draw(st.floats(0.1, 1)),
        "agents.selfplay_every": draw(st.integers(1, 1000)),
        "agents.selfplay_pool": draw(st.integers(1, 1000)),
        "agents.sides": draw(st.none() | named_agents()),
        "train.total_timesteps": draw(st.integers(10, 10**12)),
        "train.schedule_start": draw(st.integers(0, 9)),
        "train.max_episodes": draw(st.none() | st.integers(1, 10**9)),
        "train.max_seconds": draw(st.none() | positive(1e9)),
        "train.shards": 1,  # others must divide the environments, and each minibatch
        "train.on_nonfinite": draw(st.sampled_from(["stop", "skip"])),
        "train.start_from": draw(st.text()),
        "train.start_partial": draw(st.booleans()),
        "train.start_digest": draw(st.none() | st.text()),
        "stop.on": draw(st.sampled_from(["training", "evaluation"])),
        "stop.target_reward": draw(st.none() | st.floats(-1e300, 1e300)),
        "stop.convergence_window": draw(st.integers(1, 10**6)),
        "stop.early_stopping_patience": draw(st.integers(1, 10**6)),
        "eval.frequency": draw(st.integers(1, 10**6)),
        "eval.episodes": draw(st.integers(1, 10**6)),
        "eval.actions": "both",
        "eval.score": draw(st.sampled_from(["auto", "deterministic", "stochastic"])),
        "eval.max_steps": draw(st.integers(1, 10**6)),
        "checkpoint.every_steps": draw(st.none() | st.integers(1, 10**9)),
        "checkpoint.every_seconds": draw(st.none() | positive(1e6)),
        "checkpoint.keep": draw(st.integers(1, 100)),
        "checkpoint.num_checkpoints": draw(st.integers(0, 100)),
        "track.mlflow": draw(st.booleans()),
        "track.tracking_uri": draw(st.none() | st.text()),
        "track.experiment_name": draw(st.none() | st.text()),
        "track.video": draw(st.booleans()),
        "track.log_frequency": draw(st.just("auto") | st.integers(1, 10**6)),
        "track.checkpoints": draw(st.booleans()),
        "track.recent_episodes": draw(st.integers(1, 10**6)),
        "track.success_return": draw(st.none() | st.floats(-1e300, 1e300)),
        "track.info": tuple(draw(st.lists(st.from_regex(r"\A[a-z_]{1,9}\Z"), max_size=3, unique=True))),
    }
    for name in ("learning_rate", "clip_epsilon", "entropy_coef"):
        values[f"ppo.{name}"] = draw(positive(1))
        values[f"ppo.{name}_end"] = draw(st.floats(0, 1))
        values[f"ppo.{name}_schedule"] = draw(schedule)
    return values


@pytest.mark.slow
@hypothesis.settings(max_examples=30)
@given(values=valid_values())
def test_yaml_reads_back_to_an_equal_config(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert values.keys() == SETTINGS.keys(), "a new setting: give it values in valid_values"
    config = build(values)
    file = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    assert from_file(file) == values
    assert build(from_file(file)) == config


@pytest.mark.parametrize("name", ["a\x85b", "a\u2028b", " Grüße\n", "a: b # c"])
def test_odd_texts_read_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(build({"env.id": name})), encoding="utf-8")
    assert from_file(tmp_path / "config.yaml")["env.id"] == name


def test_default_reads_back_to_an_equal_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(Config()), encoding="utf-8")
    assert build(from_file(tmp_path / "config.yaml")) == Config()


def test_yaml_holds_every_setting() -> None:
    mapping = yaml.safe_load(to_yaml(Config()))
    assert from_mapping(mapping, "the file").keys() == SETTINGS.keys()
    assert mapping == to_mapping(Config())


# ---- layers


def test_later_layers_win_key_by_key() -> None:
    preset = from_mapping({"ppo": {"gamma": 0.1, "gae_lambda": 0.1, "value_coef": 0.1}}, "preset")
    file = from_mapping({"ppo": {"gamma": 0.2, "gae_lambda": 0.2}}, "file")
    config = build(preset, file, assign("ppo.gamma=0.3"))
    assert (config.ppo.gamma, config.ppo.gae_lambda, config.ppo.value_coef) == (0.3, 0.2, 0.1)
    assert config.ppo.clip_epsilon == 0.2
    assert config.env == Config().env


def test_layers_go_over_the_base() -> None:
    base = Config(seed=3, ppo=PPOConfig(gamma=0.5, gae_lambda=0.5))
    config = build(from_keywords({"gamma": 0.6}), base=base)
    assert (config.seed, config.ppo.gamma, config.ppo.gae_lambda) == (3, 0.6, 0.5)
    assert base.ppo.gamma == 0.5


def test_a_later_assignment_wins() -> None:
    assert from_assignments(["seed=1", "seed=2"]) == {"seed": 2}


def test_only_the_result_has_to_fit_together() -> None:
    config = build(assign("ppo.clip_epsilon_end=0.1"), from_assignments(["ppo.clip_epsilon_schedule=linear"]))
    assert config.ppo.clip_epsilon_end == 0.1
    assert "ppo.clip_epsilon_end=0.1" in refusal(build, assign("ppo.clip_epsilon_end=0.1"))


@pytest.mark.parametrize("seed", [MAX_SEED + 1, 2**63])
def test_seed_too_large_is_refused(seed: int) -> None:
    assert str(seed) in refusal(from_assignments, [f"seed={seed}"])


BOTH: Any = "both"
MANY: Any = "many"
A_LIST: Any = [32, 32]


@pytest.mark.parametrize(
    ("base", "path"),
    [
        (Config(seed=-1), "seed"),
        (Config(ppo=PPOConfig(gamma=7.0)), "ppo.gamma"),
        (Config(ppo=PPOConfig(minibatch_size=0)), "ppo.minibatch_size"),
        (Config(ppo=PPOConfig(optimizers=BOTH)), "ppo.optimizers"),
        (Config(env=EnvConfig(num_envs=MANY)), "env.num_envs"),
    ],
)
def test_a_config_made_by_hand_is_checked_as_well(base: Config, path: str) -> None:
    assert f"{path} must be" in refusal(build, base=base)


def test_a_list_in_a_config_made_by_hand_becomes_hashable() -> None:
    config = build(base=Config(network=NetworkConfig(hidden_sizes=A_LIST)))
    assert config.network.hidden_sizes == (32, 32)
    hash(config)


# ---- values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ppo.learning_rate=3e-4", 3e-4),
        ("ppo.learning_rate=1", 1.0),
        ("ppo.gamma = 0.9", 0.9),
        ("train.total_timesteps=1e6", 1_000_000),
        ("train.total_timesteps=1_000_000", 1_000_000),
        ("train.total_timesteps=2.0", 2),
        ("train.total_timesteps=9007199254740993", 2**53 + 1),
        ("train.total_timesteps='500'", 500),
        ("ppo.max_grad_norm=null", None),
        ("stop.target_reward=", None),
        ("stop.target_reward=-150", -150.0),
        ("network.hidden_sizes=[64, 64]", (64, 64)),
        ("network.hidden_sizes=[]", ()),
        ("ppo.normalize_advantages=off", "none"),
        ("ppo.normalize_advantages=no", "none"),
        ("ppo.normalize_advantages=null", "none"),
        ("ppo.normalize_advantages=none", "none"),
        ("ppo.normalize_advantages=batch", "batch"),
        ("normalize.rewards=on", True),
        ("normalize.rewards=false", False),
        ("env.id=gymnax/CartPole-v1", "gymnax/CartPole-v1"),
        ("env.id=my_module:Env=v0", "my_module:Env=v0"),
    ],
)
def test_values_are_read_as_the_setting_means(text: str, value: Any) -> None:
    [read] = assign(text).values()
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("num_envs", np.int64(4), 4),
        ("gamma", np.float32(0.5), 0.5),
        ("hidden_sizes", (8, np.int32(8)), (8, 8)),
        ("learning_rate", 1, 1.0),
    ],
)
def test_python_values_become_plain_ones(name: str, value: Any, read: Any) -> None:
    [converted] = from_keywords({name: value}).values()
    assert converted == read
    assert type(converted) is type(read)


WHOLE, NUMBER, FLAG, TEXT, LIST = "a whole number", "a number", "true or false", "a text", "a list of whole numbers"
NO_NUMBERS: list[Any] = ["x", "", None, True, False, [0.9], {}, math.nan, math.inf, -math.inf]
WRONG = [
    *(("env.num_envs", v, WHOLE) for v in ["x", "", None, True, False, 1.5, "1.5", [8], {"a": 1}, math.nan, math.inf]),
    *(("env.num_envs", v, WHOLE) for v in ["nan", "inf", "-inf", 10**400, 1j, np.array([[1], [2]]), object]),
    *(("ppo.gamma", v, NUMBER) for v in NO_NUMBERS),
    *(("ppo.gamma", v, NUMBER) for v in ["nan", ".inf", "infinity", "0.9.1", 10**400, datetime.date(2020, 1, 1)]),
    *(("ppo.max_grad_norm", v, "a number or null") for v in ["none", True, [], math.nan]),
    *(("train.max_episodes", v, "a whole number or null") for v in ["all", False, 0.5, math.inf]),
    *(("normalize.rewards", v, FLAG) for v in [0, 1, "true", None, []]),
    *(("env.id", v, TEXT) for v in [1, None, True, ["CartPole-v1"]]),
    *(("network.hidden_sizes", v, LIST) for v in [64, "64", None, True, [True], [1.5], [None], [[64]], {64: 64}]),
    *(("ppo.optimizers", v, "one of shared, separate") for v in ["both", "Shared", None, False, 0, ["shared"]]),
    *(("ppo.normalize_advantages", v, "one of minibatch, batch, none") for v in [True, 0, 0.0, "off", [], "x" * 999]),
]


@pytest.mark.parametrize(("path", "value", "expected"), WRONG)
def test_wrong_type_says_what_was_expected_and_what_came(path: str, value: Any, expected: str) -> None:
    text = refusal(convert, SETTINGS[path], value)
    assert text.startswith(f"{path} must be {expected}")
    assert f", not {' '.join(repr(value).split())[:60]}" in text
    assert len(text) < 200


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("ppo.gamma", 1.01, "at most 1"),
        ("ppo.gamma", -0.01, "at least 0"),
        ("ppo.gae_lambda", 2, "at most 1"),
        ("ppo.learning_rate", 0, "greater than 0"),
        ("ppo.learning_rate", "-3e-4", "greater than 0"),
        ("ppo.max_grad_norm", 0, "greater than 0"),
        ("ppo.entropy_coef", -1e-9, "at least 0"),
        ("ppo.minibatch_size", 0, "at least 1"),
        ("env.num_envs", -8, "at least 1"),
        ("train.max_episodes", 0, "at least 1"),
        ("eval.frequency", -1, "at least 0"),
        ("network.hidden_sizes", [64, 0], "at least 1"),
        ("seed", -1, "at least 0"),
    ],
)
def test_out_of_range_says_the_limit_and_what_came(path: str, value: Any, expected: str) -> None:
    assert refusal(convert, SETTINGS[path], value) == f"{path} must be {expected}, not {value!r}."


@pytest.mark.parametrize(("path", "value"), [("ppo.gamma", 0), ("ppo.gamma", 1), ("eval.frequency", 0)])
def test_limits_themselves_are_allowed(path: str, value: int) -> None:
    assert convert(SETTINGS[path], value) == value


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(setting=st.sampled_from(list(SETTINGS.values())), value=JUNK)
def test_any_value_is_either_taken_or_refused_in_words(setting: Setting, value: Any) -> None:
    try:
        taken = convert(setting, value)
    except UserError:
        assert setting.path in refusal(convert, setting, value)
    else:
        assert convert(setting, taken) == taken


@given(path=st.sampled_from(list(SETTINGS)), value=st.text() | st.from_regex(r"\A[0-9:.e-]{1,10}\Z"))
def test_any_assigned_text_is_either_taken_or_refused_in_words(path: str, value: Any) -> None:
    try:
        assign(f"{path}={value}")
    except UserError:
        assert path in refusal(assign, f"{path}={value}")


@pytest.mark.parametrize("value", ["[1, 2", "{a", "2020-13-45", "'open", "!!python/name:os.system", "\x00", "a: b: c"])
def test_assigned_text_that_is_not_yaml_is_a_wrong_value(value: str) -> None:
    text = refusal(assign, f"ppo.gamma={value}")
    assert text == f"ppo.gamma must be a number, not {value!r}."


# ---- names


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("ppo.gama", "ppo.gamma"),
        ("gama", "ppo.gamma"),
        ("pop.gamma", "ppo.gamma"),
        ("gamma", "ppo.gamma"),
        ("GAMMA", "ppo.gamma"),
        ("ppo.num_envs", "env.num_envs"),
        ("NUM_ENVS", "env.num_envs"),
        ("num-envs", "env.num_envs"),
        ("eval.episode", "eval.episodes"),
        ("hidden_size", "network.hidden_sizes"),
        ("total_timestep", "train.total_timesteps"),
        ("sed", "seed"),
        ("config.seed", "seed"),
        ("ppo.ppo.gamma", "ppo.gamma"),
    ],
)
def test_unknown_name_gets_the_nearest(wrong: str, meant: str) -> None:
    assert refusal(find_setting, wrong) == f"There is no setting {wrong}; did you mean {meant}?"


@pytest.mark.parametrize("path", [path for path in SETTINGS if "." in path])
def test_underscore_for_the_dot_gets_the_right_name(path: str) -> None:
    assert path in refusal(find_setting, path.replace(".", "_"))


@pytest.mark.parametrize("wrong", ["xyzzy", "ppo.xyzzy", "1", "qqq"])
def test_name_like_no_other_points_to_the_list(wrong: str) -> None:
    assert refusal(find_setting, wrong) == f"There is no setting {wrong}; `proximo settings` lists them all."


@pytest.mark.parametrize("prefix", ["", "ppo.", "train.", "algo."])
@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("clip_range", "ppo.clip_epsilon"),
        ("CLIP_EPS", "ppo.clip_epsilon"),
        ("clip-coef", "ppo.clip_epsilon"),
        ("clip_range_vf", "ppo.clip_value"),
        ("ent_coef", "ppo.entropy_coef"),
        ("vf_coef", "ppo.value_coef"),
        ("n_steps", "ppo.rollout_length"),
        ("NUM_STEPS", "ppo.rollout_length"),
        ("n_epochs", "ppo.epochs_per_update"),
        ("update_epochs", "ppo.epochs_per_update"),
        ("num_minibatches", "ppo.minibatch_size"),
        ("batch_size", "ppo.minibatch_size"),
        ("lr", "ppo.learning_rate"),
        ("LR", "ppo.learning_rate"),
        ("lambda", "ppo.gae_lambda"),
        ("n_envs", "env.num_envs"),
        ("net_arch", "network.hidden_sizes"),
        ("activation_fn", "network.activation"),
        ("norm_obs", "normalize.observations"),
        ("eval_freq", "eval.frequency"),
        ("n_eval_episodes", "eval.episodes"),
    ],
)
def test_names_of_other_libraries_get_ours(prefix: str, foreign: str, ours: str) -> None:
    text = refusal(find_setting, prefix + foreign)
    difference = f" ({DIFFERENCES[foreign]})" if foreign in DIFFERENCES else ""
    assert text == f"There is no setting {prefix}{foreign}; Proximo calls it {ours}{difference}."


@pytest.mark.parametrize(("foreign", "ours"), FOREIGN_NAMES.items())
def test_foreign_names_lead_to_real_settings_and_shadow_none(foreign: str, ours: str) -> None:
    assert ours in SETTINGS
    assert foreign not in SECTIONS
    assert foreign not in {setting.name for setting in SETTINGS.values()}
    assert foreign == foreign.lower(), "names are looked up in lower case"
    spelled = [path for path in SETTINGS if path.replace(".", "_") == foreign]
    assert spelled in ([], [ours])


def test_foreign_names_are_understood_however_they_arrive(tmp_path: Path) -> None:
    (tmp_path / "sb3.yaml").write_text("ppo: {clip_range: 0.1}")
    ways: list[tuple[Callable[..., Any], Any]] = [
        (assign, "clip_range=0.1"),
        (from_keywords, {"clip_range": 0.1}),
        (from_file, tmp_path / "sb3.yaml"),
    ]
    for call, argument in ways:
        assert "Proximo calls it ppo.clip_epsilon." in refusal(call, argument)


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_section_in_place_of_a_key_lists_its_keys(section: str) -> None:
    for text in (refusal(assign, f"{section}=5"), refusal(from_mapping, {section: 5}, "the file")):
        assert f"{section} is a section" in text
        assert all(SETTINGS[path].name in text for path in SETTINGS if path.startswith(f"{section}."))


# ---- files and mappings


def test_file_sets_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "seed: 5\nppo:\n  learning_rate: 1e-3\n  gamma: 0.9\nnetwork: {hidden_sizes: [32]}\nenv.num_envs: 4\n"
    )
    assert from_file(file) == {
        "seed": 5,
        "ppo.learning_rate": 0.001,
        "ppo.gamma": 0.9,
        "network.hidden_sizes": (32,),
        "env.num_envs": 4,
    }


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "ppo:\n  # gamma: 0.9\n", "---\n"])
def test_empty_file_or_section_sets_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.yaml").write_text(content)
    assert from_file(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"ppo: [1, 2", "is not a YAML file: "),
        (b"ppo:\n\tgamma: 0.9", "is not a YAML file: "),
        (b"ppo: gamma: 0.9", "is not a YAML file: "),
        (b"a: 2020-13-45", "is not a YAML file: month must be in 1..12"),
        (b"a: !!python/object/apply:os.getcwd []", "is not a YAML file: "),
        (b"\xff\xfe\x00\x80", "is not a YAML file: 'utf-8' codec"),
        (b"\x00\x01\x02", "is not a YAML file: unacceptable character"),
        (b"ppo: {gamma: 0.9}\nppo: {gae_lambda: 0.9}", "is not a YAML file: ppo is given twice"),
        (b"ppo: {gamma: 0.9, gamma: 0.8}", "is not a YAML file: gamma is given twice"),
        (b"- 1\n- 2", "must hold settings such as `ppo: {gamma: 0.98}`, not [1, 2]."),
        (b"just words", "must hold settings such as `ppo: {gamma: 0.98}`, not 'just words'."),
        (b"word " * 9999, "must hold settings such as "),
        (b"ppo: {gamma: x}", "ppo.gamma must be a number, not 'x'."),
        (b"ppo: {gama: 1}", "There is no setting ppo.gama; did you mean ppo.gamma?"),
        (b"gama: {a: 1}", "There is no setting gama; did you mean ppo.gamma?"),
        (b"ppo: {1: 2}", "There is no setting ppo.1; "),
        (b"null: 2", "There is no setting None; "),
    ],
)
def test_wrong_file_is_named_with_its_fault(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    text = refusal(from_file, file)
    assert text.startswith(str(file))
    assert complaint in text
    assert "^" not in text
    assert len(text) < 400 + 3 * len(str(file))


def test_fault_in_a_file_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("seed: 1\nppo:\n  gamma: 0.9: 0.8\n")
    assert "line 3" in refusal(from_file, tmp_path / "run.yaml")


def test_missing_file_and_directory_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.yaml"
    assert refusal(from_file, missing) == f"Cannot read the configuration {missing}: No such file or directory."
    assert refusal(from_file, tmp_path) == f"Cannot read the configuration {tmp_path}: Is a directory."


# ---- Python keywords


def test_keyword_is_a_keys_own_name_or_section_key() -> None:
    assert from_keywords({"gamma": 0.9, "eval_episodes": 5, "seed": 1, "env_id": "x"}) == {
        "ppo.gamma": 0.9,
        "eval.episodes": 5,
        "seed": 1,
        "env.id": "x",
    }


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_has_an_unambiguous_keyword(path: str) -> None:
    assert find_keyword(path.replace(".", "_")).path == path


def test_keyword_given_twice_is_refused() -> None:
    assert refusal(from_keywords, {"gamma": 0.9, "ppo_gamma": 0.8}) == "ppo.gamma is given twice."


def test_keyword_in_two_sections_is_refused_with_both_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = settings.Setting("stop.gamma", float, 0.5, SETTINGS["ppo.gamma"].metadata)
    monkeypatch.setitem(SETTINGS, "stop.gamma", twin)
    text = refusal(from_keywords, {"gamma": 0.9})
    assert text == "gamma is a setting of more than one section; write ppo_gamma or stop_gamma."
    assert from_keywords({"ppo_gamma": 0.9, "stop_gamma": 0.8}) == {"ppo.gamma": 0.9, "stop.gamma": 0.8}
    assert refusal(assign, "gamma=0.9") == "There is no setting gamma; did you mean ppo.gamma or stop.gamma?"


def test_unknown_keyword_gets_the_nearest() -> None:
    assert "did you mean ppo.gamma?" in refusal(from_keywords, {"gama": 0.9})


def test_wrong_keyword_value_names_the_path() -> None:
    assert refusal(from_keywords, {"gamma": "high"}) == "ppo.gamma must be a number, not 'high'."


# ---- assignments


@pytest.mark.parametrize("text", ["ppo.gamma", "ppo.gamma 0.9", "ppo.gamma:0.9", "", "=0.9", " = "])
def test_assignment_without_name_or_equals_shows_how(text: str) -> None:
    assert refusal(from_assignments, [text]) == f"--set takes section.key=value, such as ppo.gamma=0.98; not {text!r}."


# ---- what is collected for an update, by its own name


def test_frames_per_batch_sets_the_rollout_length() -> None:
    config = build(from_keywords(dict(frames_per_batch=512, num_envs=16)))
    assert config.ppo.rollout_length == 32
    assert config.frames_per_batch == 512
    assert build({"ppo.rollout_length": 7}, from_mapping({"frames_per_batch": 128}, "it")).ppo.rollout_length == 8
    assert build(assign("ppo.frames_per_batch=128"), {"env.num_envs": 2}).ppo.rollout_length == 64
    # A rollout length that is given later, by a flag over a file, counts.
    assert build(from_mapping({"frames_per_batch": 128}, "it"), {"ppo.rollout_length": 9}).ppo.rollout_length == 9


def test_frames_that_do_not_fit_are_refused() -> None:
    assert "multiple of 8" in refusal(build, from_keywords(dict(frames_per_batch=100, num_envs=8)))
    assert "one of the two" in refusal(build, from_keywords(dict(frames_per_batch=64, rollout_length=8)))
    assert "at least 1" in refusal(from_keywords, dict(frames_per_batch=0))


@pytest.mark.parametrize(
    "values",
    [
        lambda: from_keywords(dict(batch_size=64, minibatch_size=32)),
        lambda: from_mapping({"ppo": {"batch_size": 64, "minibatch_size": 32}}, "it"),
    ],
)
def test_a_batch_size_beside_a_minibatch_size_is_what_is_collected(values: Callable[..., Any]) -> None:
    config = build({"env.num_envs": 8}, values())
    assert (config.ppo.rollout_length, config.ppo.minibatch_size) == (8, 32)


def test_a_batch_size_alone_is_answered_with_both_meanings() -> None:
    text = refusal(from_keywords, dict(batch_size=64))
    assert "ppo.minibatch_size" in text
    assert "frames_per_batch" in text


@pytest.mark.parametrize(
    ("name", "ours"),
    [("eval_interval", "eval.frequency"), ("eval_steps", "eval.episodes"), ("log_interval", "track.log_frequency")],
)
def test_names_of_the_training_flow_are_answered_with_ours(name: str, ours: str) -> None:
    assert ours in refusal(from_keywords, {name: 5})
    assert ours in refusal(from_mapping, {name: 5}, "it")


# ---- limits


@pytest.mark.parametrize("path", SETTINGS)
def test_every_count_has_a_limit(path: str) -> None:
    """Nothing that is counted, and no time to wait, is without end."""
    setting = SETTINGS[path]
    types = typing.get_args(setting.type) or (setting.type,)
    if int in types or path == "env.timeout":
        limit = setting.metadata["at_most"]
        assert limit is not None
        value = [limit + 1] if path == "network.hidden_sizes" else limit + 1
        assert "must be at most" in refusal(convert, setting, value)
    if dict in {typing.get_origin(kind) for kind in types} or path == "network.hidden_sizes":
        assert setting.metadata["most"] is not None


def test_long_lists_are_refused() -> None:
    assert "must list at most 100, not 101" in refusal(convert, SETTINGS["network.hidden_sizes"], [1] * 101)
    members = {"wolf": [str(i) for i in range(10_001)]}
    assert "must list at most 10,000" in refusal(convert, SETTINGS["agents.members"], members)


def test_samples_of_an_update_have_a_limit() -> None:
    text = refusal(build, {"env.num_envs": 10**6, "ppo.rollout_length": 10**9})
    assert "make 1,000,000,000,000,000 samples" in text


def test_quotes_are_short() -> None:
    nested: list[Any] = [1]
    for _ in range(30):
        nested = [nested] * 10
    for value in (nested, 10**5000, "x" * 10**6, dict.fromkeys(range(1000), nested)):
        assert len(refusal(convert, SETTINGS["ppo.gamma"], value)) < 150


def test_a_value_that_depends_on_the_actions_is_taken_where_it_is_left_to_that() -> None:
    section = PPOConfig(entropy_coef="auto")
    entropy = next(field for field in dataclasses.fields(PPOConfig) if field.name == "entropy_coef")
    discrete, continuous = entropy.metadata["by_action"]
    assert settle(Config(ppo=section), continuous=False).ppo.entropy_coef == discrete
    assert settle(Config(ppo=section), continuous=True).ppo.entropy_coef == continuous
    given = Config(ppo=PPOConfig(entropy_coef=0.3, minibatch_size=32))
    assert settle(given, continuous=True) is given
    assert f"auto: {discrete:g} for discrete actions, {continuous:g} if any" in entropy.metadata["help"]
