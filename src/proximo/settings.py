"""Reading settings: YAML files, `section.key=value` overrides, Python keywords; and writing them back."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from proximo.config import Config, check, check_minibatch, open_minibatch, setting
from proximo.credentials import without_login
from proximo.errors import UserError, quoted
from proximo.hints import ELSEWHERE
from proximo.yaml_file import dump, parse, read_yaml

# What users of other libraries would type (Stable-Baselines3, CleanRL, PureJaxRL, rejax, RLlib, TorchRL), and our name.
FOREIGN_NAMES = {
    "epochs": "ppo.epochs_per_update",
    "rollout_fragment_length": "ppo.rollout_length",
    "clip_ratio": "ppo.clip_epsilon",
    "env_config": "env.kwargs",
    "wrapper_class": "env.wrappers",
    "num_envs_per_worker": "env.num_envs",
    "num_envs_per_env_runner": "env.num_envs",
    "max_episode_steps": "env.max_steps_per_episode",
    "time_limit": "env.max_steps_per_episode",
    "use_lstm": "network.memory",
    "lstm_cell_size": "network.memory_size",
    "lstm_hidden_size": "network.memory_size",
    "total_frames": "train.total_timesteps",
    "deterministic": "eval.actions",
    "capture_video": "track.video",
    "record_video": "track.video",
    "exp_name": "track.experiment_name",
    "save_freq": "checkpoint.every_steps",
    "checkpoint_freq": "checkpoint.every_steps",
    "checkpoint_frequency": "checkpoint.every_steps",
    "n_steps": "ppo.rollout_length",
    "num_steps": "ppo.rollout_length",
    "n_epochs": "ppo.epochs_per_update",
    "num_epochs": "ppo.epochs_per_update",
    "update_epochs": "ppo.epochs_per_update",
    "num_sgd_iter": "ppo.epochs_per_update",
    "batch_size": "ppo.minibatch_size",
    "num_minibatches": "ppo.minibatch_size",
    "sgd_minibatch_size": "ppo.minibatch_size",
    "lr": "ppo.learning_rate",
    "anneal_lr": "ppo.learning_rate_schedule",
    "discount": "ppo.gamma",
    "lambda": "ppo.gae_lambda",
    "lam": "ppo.gae_lambda",
    "lambda_": "ppo.gae_lambda",
    "clip_range": "ppo.clip_epsilon",
    "clip_coef": "ppo.clip_epsilon",
    "clip_eps": "ppo.clip_epsilon",
    "clip_param": "ppo.clip_epsilon",
    "clip_range_vf": "ppo.clip_value",
    "clip_vloss": "ppo.clip_value",
    "vf_clip_param": "ppo.clip_value",
    "ent_coef": "ppo.entropy_coef",
    "entropy_coeff": "ppo.entropy_coef",
    "vf_coef": "ppo.value_coef",
    "vf_loss_coeff": "ppo.value_coef",
    "grad_clip": "ppo.max_grad_norm",
    "normalize_advantage": "ppo.normalize_advantages",
    "norm_adv": "ppo.normalize_advantages",
    "kl_target": "ppo.target_kl",
    "env_id": "env.id",
    "env_name": "env.id",
    "n_envs": "env.num_envs",
    "n_stack": "env.frame_stack",
    "stack_num": "env.frame_stack",
    "share_features_extractor": "network.torso",
    "num_workers": "env.workers",
    "num_env_runners": "env.workers",
    "vec_env_cls": "env.workers",
    "net_arch": "network.hidden_sizes",
    "hidden_layer_sizes": "network.hidden_sizes",
    "fcnet_hiddens": "network.hidden_sizes",
    "activation_fn": "network.activation",
    "log_std_init": "network.initial_std",
    "info_keywords": "track.info",
    "norm_obs": "normalize.observations",
    "norm_reward": "normalize.rewards",
    "timesteps": "train.total_timesteps",
    "num_timesteps": "train.total_timesteps",
    "steps": "train.total_timesteps",
    "eval_freq": "eval.frequency",
    "eval_interval": "eval.frequency",
    "eval_steps": "eval.episodes",
    "n_eval_episodes": "eval.episodes",
    "num_seed": "seed",
    "stats_window_size": "track.recent_episodes",
    "log_interval": "track.log_frequency",
}
LONGEST_NAME = 100
# Keywords that the trainer takes under another name.
KEYWORDS = {"enable_mlflow": "track.mlflow"}
# Where our setting means something a little different, what it means.
DIFFERENCES = {
    "batch_size": "samples per gradient step; what is collected for an update is frames_per_batch",
    "eval_interval": "in updates",
    "eval_steps": "whole episodes; env.max_steps_per_episode cuts them",
    "log_interval": "in updates",
    "vec_env_cls": "0 for this process, a number of worker processes, or auto",
    "share_features_extractor": "separate or shared",
    "num_minibatches": "the size of a minibatch, not how many there are",
    "log_std_init": "the deviation itself, not its logarithm",
    "anneal_lr": "constant, linear, cosine or adaptive",
    "clip_vloss": "how far a value may move, or null",
    "norm_adv": "minibatch, batch or none",
    "use_lstm": "none, gru or lstm",
    "deterministic": "deterministic, stochastic or both",
    "save_freq": "in environment steps",
    "checkpoint_freq": "in environment steps",
    "checkpoint_frequency": "in environment steps",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One key of the configuration, as declared."""

    path: str
    type: Any
    default: Any
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def help(self) -> str:
        return str(self.metadata["help"])


def all_settings() -> dict[str, Setting]:
    """Every setting by its dotted path, in the order of declaration."""

    def walk(cls: type, prefix: str) -> Iterator[Setting]:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if dataclasses.is_dataclass(hints[field.name]):
                yield from walk(hints[field.name], f"{prefix}{field.name}.")
            else:
                yield Setting(f"{prefix}{field.name}", hints[field.name], field.default, field.metadata)

    return {setting.path: setting for setting in walk(Config, "")}


SETTINGS = all_settings()

FRAMES = Setting(
    "frames_per_batch",
    int,
    None,
    setting(
        None,
        "Environment steps per update, over all environments; sets ppo.rollout_length.",
        at_least=1,
        at_most=10**9,
    ).metadata,
)
"""Not a setting of its own: `build` turns it into `ppo.rollout_length`."""


def find_setting(path: str) -> Setting:
    """The setting at `path`, or an error that names the nearest one."""
    if path in SETTINGS:
        return SETTINGS[path]
    if path.removeprefix("ppo.") == FRAMES.path:
        return FRAMES
    path = path if len(path) <= LONGEST_NAME else f"{path[:LONGEST_NAME]}…"
    name = plain_name(path)
    if path in {other.partition(".")[0] for other in SETTINGS if "." in other}:
        keys = ", ".join(s.name for s in SETTINGS.values() if s.path.startswith(f"{path}."))
        raise UserError(f"{path} is a section of settings, not a setting; name one of its keys: {keys}.")
    if name in FOREIGN_NAMES:
        hint = f"Proximo calls it {FOREIGN_NAMES[name]}{difference(name)}."
    elif meant := meant_settings(path):
        hint = f"did you mean {' or '.join(meant)}?"
    else:
        hint = f"{ELSEWHERE.get(name, '`proximo settings` lists them all')}."
    raise UserError(f"There is no setting {path}; {hint}")


def plain_name(path: str) -> str:
    """The name at the end of `path`, as names of other libraries are looked up."""
    return path.rpartition(".")[2].lower().replace("-", "_")


def difference(name: str) -> str:
    """How our setting differs from what another library calls `name`, in brackets."""
    return f" ({DIFFERENCES[name]})" if name in DIFFERENCES else ""


def meant_settings(path: str) -> list[str]:
    """The settings that `path`, which is none, may mean: those of that name; else of one that begins with it; else the
    one that is spelled most like it, unless it is a name that stands for something else."""
    name = plain_name(path)
    if name == FRAMES.path:
        return [FRAMES.path]
    same = [other for other, declared in SETTINGS.items() if name in (declared.name, other.replace(".", "_"))]
    if same or name in ELSEWHERE:
        return same
    longer = [other for other, declared in SETTINGS.items() if declared.name.startswith(f"{name}_")]
    if len(longer) == 1:
        return longer
    whole = difflib.get_close_matches(path, list(SETTINGS), 1, 0.75)
    names = difflib.get_close_matches(name, [declared.name for declared in SETTINGS.values()], 1, 0.65)
    return whole or [other for other, declared in SETTINGS.items() if declared.name in names][:1]


def find_keyword(name: str) -> Setting:
    """The setting that a Python keyword means: its own name, or `section_name`."""
    if name in KEYWORDS:
        return SETTINGS[KEYWORDS[name]]
    by_name = [setting for setting in SETTINGS.values() if setting.name == name]
    by_path = [setting for setting in SETTINGS.values() if setting.path.replace(".", "_") == name]
    if len(by_name) > 1:
        spelled = " or ".join(setting.path.replace(".", "_") for setting in by_name)
        raise UserError(f"{name} is a setting of more than one section; write {spelled}.")
    return (by_name or by_path or [find_setting(name)])[0]


def choices(declared: Setting) -> list[str]:
    """The values that can be spelled out for a setting: of a choice all, of a switch both, else none."""
    parts = typing.get_args(declared.type) if _is_union(declared.type) else (declared.type,)
    found = [value for part in parts if typing.get_origin(part) is typing.Literal for value in typing.get_args(part)]
    found += ["true", "false"] if bool in parts else []
    return [*found, *(["null"] if types.NoneType in parts else [])]


def _is_union(expected: Any) -> bool:
    return typing.get_origin(expected) in (types.UnionType, typing.Union)


def _describe(expected: Any) -> str:
    origin, args = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Literal:
        return ", ".join(map(str, args)) if len(args) == 1 else "one of " + ", ".join(map(str, args))
    if _is_union(expected):
        return " or ".join("null" if arg is types.NoneType else _describe(arg) for arg in args)
    if origin is tuple and args[0] is int:
        return "a list of whole numbers such as [64, 64]"
    if origin is tuple and typing.get_origin(args[0]) is typing.Literal:
        return f"a list of {' and '.join(typing.get_args(args[0]))}"
    if origin is tuple and args[0] is str:
        return "a list of names such as [profit, drawdown]"
    if origin is tuple:
        return "a list of names such as [gymnasium.wrappers:FlattenObservation]"
    if origin is dict and args[1] is Any:
        return (
            "arguments such as {continuous: true, gravity: -5}: finite numbers, texts, true, false, null, and lists "
            "and maps of these"
        )
    if origin is dict:
        return "names with lists of agents, such as {wolf: [wolf_0, wolf_1]}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[expected]


def _convert(value: Any, expected: Any) -> Any:
    """`value` as the type `expected`; raises ValueError where it is not one."""
    origin, args = typing.get_origin(expected), typing.get_args(expected)
    if _is_union(expected):
        for choice in args:
            with contextlib.suppress(ValueError, OverflowError):
                return _convert(value, choice)
        raise ValueError
    if expected is types.NoneType:
        if value is not None:
            raise ValueError
        return None
    if origin is typing.Literal:
        # YAML reads `off` and `no` as false: where "none" is a choice, that is what they mean.
        value = "none" if (value is None or value is False) and "none" in args else value
        if value not in args:
            raise ValueError
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError
        return tuple(_convert(item, args[0]) for item in value)
    if origin is dict and args[1] is Any:
        if not isinstance(value, Mapping):
            raise ValueError
        return {_convert(key, str): _plain_data(item) for key, item in value.items()} or None
    if origin is dict:
        if not isinstance(value, Mapping) or not value:
            raise ValueError
        return {_convert(key, args[0]): _convert(item, args[1]) for key, item in value.items()}
    if expected in (int, float):
        # YAML 1.1 reads 3e-4 as a text; numpy's numbers are numbers.Real too.
        if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or (expected is int and not number.is_integer()):
            raise ValueError
        return int(value) if expected is int and isinstance(value, numbers.Integral) else expected(number)
    if expected is str and isinstance(value, Path):
        return str(value)
    if not isinstance(value, expected):
        raise ValueError
    return value


def _plain_data(value: Any) -> Any:
    """`value` as YAML and JSON both keep it, so that whoever reads it back makes the same environment; raises
    ValueError where it is nothing of the kind."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        if not -(2**63) <= int(value) < 2**64:
            raise ValueError
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise ValueError
        return float(value)
    if isinstance(value, datetime.date):  # YAML takes 2024-01-31 for one
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain_data(item) for item in value]
    if isinstance(value, Mapping):
        return {_convert(key, str): _plain_data(item) for key, item in value.items()}
    raise ValueError


def convert(setting: Setting, value: Any) -> Any:
    """`value` as the setting's type and within its range, or an error that says what was expected."""
    try:
        converted = _convert(value, setting.type)
    except (ValueError, OverflowError, RecursionError):
        raise UserError(f"{setting.path} must be {_describe(setting.type)}, not {quoted(value)}.") from None
    limits = setting.metadata
    if limits["most"] is not None and isinstance(converted, tuple | dict):
        for count in [len(converted), *(len(part) for part in _parts(converted))]:
            if count > limits["most"]:
                raise UserError(f"{setting.path} must list at most {limits['most']:,}, not {count:,}.")
    if limits["address"] and isinstance(converted, str):
        return _address(converted)
    for number in converted if isinstance(converted, tuple) else (converted,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        for limit, ok, words in (
            (limits["at_least"], operator.ge, "at least"),
            (limits["at_most"], operator.le, "at most"),
            (limits["above"], operator.gt, "greater than"),
        ):
            if limit is not None and not ok(number, limit):
                raise UserError(f"{setting.path} must be {words} {_plain(limit)}, not {quoted(value)}.")
    return converted


def _parts(converted: Any) -> list[Any]:
    return [part for part in converted.values() if isinstance(part, tuple)] if isinstance(converted, dict) else []


def _plain(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) and abs(limit) >= 10_000 else f"{limit:g}"


def _address(uri: str) -> str:
    """An address as a run keeps it: without who may use it, and the same wherever the working directory is."""
    scheme, path = "sqlite:///", uri.removeprefix("sqlite:///")
    if uri.startswith(scheme) and path and not path.startswith((os.sep, ":")):
        return f"{scheme}{os.path.abspath(path)}"
    return without_login(uri)


Values = dict[str, Any]
"""Converted values by dotted path: what a preset, a file or the flags set."""


def from_mapping(mapping: Any, source: str) -> Values:
    """The values of a nested mapping as YAML gives it; `source` names it in errors."""
    if not isinstance(mapping, Mapping):
        raise UserError(f"{source} must hold settings such as `ppo: {{gamma: 0.98}}`, not {quoted(mapping)}.")
    sections = {path.partition(".")[0] for path in SETTINGS if "." in path}
    values: Values = {}
    try:
        for key, value in _both_sizes(mapping).items():
            if key in sections and (value is None or isinstance(value, Mapping)):
                for inner, inner_value in _both_sizes(value or {}).items():
                    found = find_setting(f"{key}.{_key(inner)}")
                    values[found.path] = convert(found, inner_value)
            else:
                found = find_setting(_key(key))
                values[found.path] = convert(found, value)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return values


def _both_sizes(given: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """`given`, where beside a `minibatch_size` a `batch_size` is what is collected; alone, it could be either."""
    if not {"batch_size", "minibatch_size"} <= given.keys():
        return given
    return {FRAMES.path if key == "batch_size" else key: value for key, value in given.items()}


def _key(key: Any) -> str:
    return key if isinstance(key, str) else quoted(key)


def from_file(path: Path) -> Values:
    """The values of a YAML file that the user named."""
    mapping = read_yaml(path)
    return from_mapping({} if mapping is None else mapping, str(path))


def from_assignments(assignments: list[str]) -> Values:
    """The values of `section.key=value` texts; each value is YAML (`null`, `[64, 64]`, `3e-4`)."""
    values: Values = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise UserError(f"--set takes section.key=value, such as ppo.gamma=0.98; not {quoted(text)}.")
        found = find_setting(path.strip())
        try:
            parsed = parse(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"{found.path} must be {_describe(found.type)}, not {quoted(value)}.") from None
        values[found.path] = convert(found, parsed)
    return values


def from_env_arguments(texts: list[str]) -> Values:
    """The arguments of an environment from `name=value` texts; each value is YAML."""
    found: Values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UserError(f"--env-arg takes name=value, such as gravity=-5; not {quoted(text)}.")
        try:
            parsed = parse(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"--env-arg {name.strip()}= must be followed by YAML, not {quoted(value)}.") from None
        if name.strip() in found:
            raise UserError(f"--env-arg {name.strip()} is given twice.")
        found[name.strip()] = parsed
    converted: Values = convert(SETTINGS["env.kwargs"], found)
    return converted


def from_keywords(keywords: Mapping[str, Any]) -> Values:
    """The values of Python keywords: a key's own name (`gamma=0.9`) or `section_key` (`eval_episodes=5`)."""
    values: Values = {}
    for name, value in _both_sizes(keywords).items():
        found = find_keyword(name)
        if found.path in values:
            raise UserError(f"{found.path} is given twice.")
        values[found.path] = convert(found, value)
    return values


def build(*layers: Values, base: Config | None = None) -> Config:
    """A checked configuration: `base` (or the defaults), then each layer over the one before."""
    config = Config()
    frames: int | None = None
    for layer in (from_mapping(to_mapping(base or config), "config"), *layers):
        if FRAMES.path in layer and "ppo.rollout_length" in layer:
            raise UserError("frames_per_batch sets ppo.rollout_length; give only one of the two.")
        frames = layer.get(FRAMES.path, None if "ppo.rollout_length" in layer else frames)
        for path, value in layer.items():
            if path == FRAMES.path:
                continue
            head, dot, name = path.partition(".")
            inner = dataclasses.replace(getattr(config, head), **{name: value}) if dot else value
            config = dataclasses.replace(config, **{head: inner})
    return check(config if frames is None else _collecting(config, frames))


def _collecting(config: Config, frames: int) -> Config:
    """`config` with rollouts of `frames` steps over all environments."""
    steps, rest = divmod(frames, config.env.num_envs)
    if rest:
        raise UserError(
            f"frames_per_batch={frames} cannot be divided evenly among env.num_envs={config.env.num_envs} "
            f"environments; make it a multiple of {config.env.num_envs}."
        )
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, rollout_length=steps))


def settle(config: Config, continuous: bool, members: Sequence[int] = (1,)) -> Config:
    """`config` with a value wherever `auto` stands for one: by the actions, whether some are continuous, by how many
    `members` each group of agents has, and by other settings. What is decided while a run goes on (`env.workers`,
    `track.log_frequency`) stays as it is."""
    for declared in SETTINGS.values():
        section, _, name = declared.path.partition(".")
        by_action = declared.metadata.get("by_action")
        if by_action is not None and getattr(inner := getattr(config, section), name) == "auto":
            config = dataclasses.replace(
                config, **{section: dataclasses.replace(inner, **{name: by_action[continuous]})}
            )
    if config.ppo.minibatch_size == "auto":
        size = open_minibatch(config, members)
        config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, minibatch_size=size))
    check_minibatch(config, members)
    return config


def to_mapping(config: Config) -> dict[str, Any]:
    """The configuration as plain nested values, as YAML and JSON take them."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return dict(plain(dataclasses.asdict(config)))


def to_yaml(config: Config) -> str:
    """The whole configuration as YAML that `from_file` reads back to an equal one."""
    return dump(to_mapping(config))
