"""What is searched: settings with ranges or choices, from a YAML file or by the kind of environment.

ppo.learning_rate: {log: [1e-5, 2e-3]}          # log-uniform; of a whole number, too
1 - ppo.gamma: {log: [1e-4, 3e-2]}              # of the distance to 1
ppo.value_coef: {uniform: [0.25, 1.0]}
ppo.epochs_per_update: {int: [1, 20]}
network.hidden_sizes: {choices: [[64, 64], [256, 256]]}
ppo.minibatch_size: {minibatches: [4, 16]}      # an update's samples in so many
network.memory_size: {choices: [64, 128], when: {network.memory: [gru, lstm]}}
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proximo import settings
from proximo.config import Config, check
from proximo.envs.groups import Groups
from proximo.errors import UserError, quoted
from proximo.ppo.static_config import split_static
from proximo.settings import Setting, Values
from proximo.spaces import has_continuous, leaves
from proximo.train.program import settled

Params = dict[str, Any]
"""A point of the space: what is searched by its name, with a number, a text, true, false or null."""
GroupsOf = Callable[[Config], Groups]
"""The groups of agents that an environment has with these settings."""
FORMS = ("log", "uniform", "int", "choices", "minibatches")
COMPLEMENT = "1 - "
MINIBATCHES = "minibatches"
SEARCHED = ("ppo.", "network.", "normalize.", "agents.", "env.num_envs", "env.frame_stack")
"""What a space may hold; what a run is trained on, for how long and how it is judged must be the same for all."""
NOT_SEARCHED = ("ppo.own", "agents.members", "agents.sides")
MOST_CHOICES = 100
MOST_COMBINATIONS = 1_000
"""Of choices that are tried out before anything is trained."""


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched."""

    path: str
    form: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    complement: bool = False
    """Whether the range is that of 1 minus the setting."""
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """Settings, and their values with which this one is searched; otherwise it stays as it is."""

    @property
    def name(self) -> str:
        """What the study calls it."""
        if self.form == MINIBATCHES:
            return MINIBATCHES
        return f"{COMPLEMENT}{self.path}" if self.complement else self.path

    @property
    def whole(self) -> bool:
        """Whether the numbers of its range are whole."""
        return self.form == "int" or _is_whole(settings.SETTINGS[self.path])

    def holds(self, param: Any) -> bool:
        """Whether `param` lies in it."""
        if self.choices:
            return any(same(param, choice) for choice in self.choices)
        number = isinstance(param, int | float) and not isinstance(param, bool)
        return number and self.low <= param <= self.high and (not self.whole or param == int(param))

    def active(self, config: Config) -> bool:
        """Whether it is searched with these other settings."""
        return all(any(same(read(config, path), one) for one in values) for path, values in self.when)

    def as_mapping(self) -> dict[str, Any]:
        """As a YAML file has it."""
        form: dict[str, Any] = {self.form: list(self.choices) if self.choices else [self.low, self.high]}
        return form | ({"when": {path: list(values) for path, values in self.when}} if self.when else {})


Space = tuple[Dimension, ...]


def same(one: Any, other: Any) -> bool:
    """As JSON has them: lists are tuples, and true is not 1."""
    return json.dumps(one) == json.dumps(other) or (
        isinstance(one, int | float) and isinstance(other, int | float) and not {type(one), type(other)} & {bool}
        and one == other
    )  # fmt: skip


def read(config: Config, path: str) -> Any:
    """The value of a setting by its dotted path."""
    for name in path.split("."):
        config = getattr(config, name)
    return config


def to_mapping(space: Space) -> dict[str, Any]:
    """The space as a YAML file has it."""
    return {
        f"{COMPLEMENT}{dimension.path}" if dimension.complement else dimension.path: dimension.as_mapping()
        for dimension in space
    }


def from_mapping(mapping: Any, source: str) -> Space:
    """The space of a mapping as YAML gives it, whose ranges the settings allow; `source` names it in errors."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise UserError(
            f"{source} must hold settings with what is searched, such as `ppo.learning_rate: {{log: [1e-5, 2e-3]}}`, "
            f"not {quoted(mapping)}."
        )
    try:
        found = [_dimension(key, given) for key, given in _flat(mapping)]
        paths = [dimension.path for dimension in found]
        if twice := [path for path in paths if paths.count(path) > 1]:
            raise UserError(f"{twice[0]} is given twice.")
        return _ordered(found)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _flat(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Keys with their sections, whether these stand before them or above them."""
    sections = {path.partition(".")[0] for path in settings.SETTINGS if "." in path}
    for key, given in mapping.items():
        if key in sections and isinstance(given, Mapping):
            for inner, what in given.items():
                name = str(inner)
                prefix = COMPLEMENT if name.startswith(COMPLEMENT) else ""
                yield f"{prefix}{key}.{name.removeprefix(COMPLEMENT)}", what
        else:
            yield str(key), given


def _dimension(key: str, given: Any) -> Dimension:
    setting = settings.find_setting(key.removeprefix(COMPLEMENT).strip())
    path, complement = setting.path, key.startswith(COMPLEMENT)
    if not path.startswith(SEARCHED) or path in NOT_SEARCHED:
        raise UserError(
            f"{path} cannot be searched: trials differ in ppo, network, normalize, agents and env.num_envs."
        )
    forms = [form for form in FORMS if isinstance(given, Mapping) and form in given]
    if len(forms) != 1 or set(given) - {*forms, "when"}:
        raise UserError(
            f"{key} must have one of {', '.join(FORMS)}, such as {{choices: [...]}} or {{log: [low, high]}}, and maybe "
            f"`when`; not {quoted(given)}."
        )
    (form,) = forms
    when = _conditions(key, given.get("when"))
    if form in ("choices", MINIBATCHES):
        if complement:
            raise UserError(f"{key} must have log or uniform, not {form}.")
        choices = _choices(setting, given[form]) if form == "choices" else _counts(setting, given[form])
        return Dimension(path, form, choices=choices, when=when)
    low, high = _ends(setting, form, given[form], complement)
    return Dimension(path, form, low, high, complement=complement, when=when)


def _choices(setting: Setting, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST_CHOICES:
        raise UserError(f"{setting.path} must list 1 to {MOST_CHOICES} choices, not {quoted(given)}.")
    found = tuple(settings.convert(setting, choice) for choice in given)
    for number, one in enumerate(found):
        if any(same(one, other) for other in found[:number]):
            raise UserError(f"{setting.path} lists the choice {quoted(given[number])} twice.")
    return found


def _counts(setting: Setting, given: Any) -> tuple[Any, ...]:
    if setting.path != "ppo.minibatch_size":
        raise UserError(f"minibatches is for ppo.minibatch_size, not for {setting.path}.")
    counts = _choices(dataclasses.replace(setting, path=MINIBATCHES), given)
    if "auto" in counts:
        raise UserError("minibatches are numbers of minibatches in an update, not auto.")
    return counts


def _ends(setting: Setting, form: str, given: Any, complement: bool) -> tuple[float, float]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise UserError(f"{setting.path} must have {form}: [low, high], not {quoted(given)}.")
    low, high = (_number(setting, end) for end in given)
    if low >= high:
        raise UserError(f"{setting.path} must have {form}: [low, high] with low < high, not {quoted(given)}.")
    if form == "log" and low <= 0:
        raise UserError(f"{setting.path} must have log: [low, high] above 0, not {quoted(given)}.")
    if form == "int" and not (low.is_integer() and high.is_integer()):
        raise UserError(f"{setting.path} must have int: [low, high] of whole numbers, not {quoted(given)}.")
    for end in (low, high):
        converted = settings.convert(setting, 1.0 - end if complement else end)
        if isinstance(converted, bool | str) or not isinstance(converted, int | float):
            raise UserError(f"{setting.path} is no number, and takes choices: [...], not {form}.")
    if form == "uniform" and _is_whole(setting):
        raise UserError(f"{setting.path} is a whole number, and takes int: [low, high], not uniform.")
    if form == "int" or _is_whole(setting):
        return int(low), int(high)
    return low, high


def _number(setting: Setting, end: Any) -> float:
    if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
        raise UserError(f"{setting.path} must have a range of numbers, not {quoted(end)}.")
    return float(end)


def _is_whole(setting: Setting) -> bool:
    kinds = typing.get_args(setting.type) or (setting.type,)
    return int in kinds and float not in kinds


def _conditions(key: str, given: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if not isinstance(given or {}, Mapping):
        raise UserError(f"{key}: `when` must hold settings with values, such as {{network.memory: [gru, lstm]}}.")
    found = []
    for name, values in (given or {}).items():
        setting = settings.find_setting(str(name))
        each = values if isinstance(values, list | tuple) else [values]
        found.append((setting.path, tuple(settings.convert(setting, value) for value in each)))
    return tuple(found)


def _ordered(found: list[Dimension]) -> Space:
    """Those that others depend on before them."""
    searched = {dimension.path for dimension in found}
    done: list[Dimension] = []
    while left := [dimension for dimension in found if dimension not in done]:
        known = {dimension.path for dimension in done}
        ready = [d for d in left if not ({path for path, _ in d.when} & searched) - known]
        if not ready:
            raise UserError(f"the conditions of {', '.join(d.path for d in left)} depend on each other.")
        done += ready
    return tuple(done)


def configure(base: Config, space: Space, params: Mapping[str, Any], groups_of: GroupsOf) -> Config:
    """The settings at a point of the space; those that are not searched there are the `base`'s."""
    config = partly(base, space, params)
    if MINIBATCHES in params:
        config = _replaced(config, {"ppo.minibatch_size": _minibatch(config, params[MINIBATCHES], groups_of)})
    settled(check(config), groups_of(config))
    return config


def partly(base: Config, space: Space, params: Mapping[str, Any]) -> Config:
    """The settings at a point that is known in part, whether or not they fit together; without minibatches."""
    return _replaced(base, _values(space, params))


def _values(space: Iterable[Dimension], params: Mapping[str, Any]) -> Values:
    """What the settings are at a point, but for minibatches, whose size depends on others."""
    return {
        d.path: settings.convert(settings.SETTINGS[d.path], 1.0 - params[d.name] if d.complement else params[d.name])
        for d in space
        if d.name in params and d.form != MINIBATCHES
    }


def _minibatch(config: Config, parts: int, groups_of: GroupsOf) -> int:
    samples = config.frames_per_batch * math.gcd(*(group.size for group in groups_of(config).values()))
    if samples % parts:
        raise UserError(
            f"{parts} minibatches do not divide the {samples} samples of an update (env.num_envs={config.env.num_envs} "
            f"* ppo.rollout_length={config.ppo.rollout_length}) evenly."
        )
    return samples // parts


def _replaced(config: Config, values: Values) -> Config:
    """`config` with these values, whether or not they fit together."""
    for path, value in values.items():
        section, _, name = path.partition(".")
        config = dataclasses.replace(
            config, **{section: dataclasses.replace(getattr(config, section), **{name: value})}
        )
    return config


def params_of(base: Config, space: Space, groups_of: GroupsOf) -> tuple[Params, list[str]]:
    """The point at which the `base` itself lies, and the names of what lies outside of the space there. Zero, which a
    logarithmic range cannot hold, stands at its lower end."""
    groups = groups_of(base)
    config = settled(base, groups)
    params: Params = {}
    outside = []
    for dimension in space:
        if not dimension.active(config):
            continue
        value = read(config, dimension.path)
        if dimension.form == MINIBATCHES:
            samples = config.frames_per_batch * math.gcd(*(group.size for group in groups.values()))
            value = samples // value if samples % value == 0 else None
        elif dimension.complement:
            value = 1.0 - value
        if dimension.form == "log" and value == 0:
            value = dimension.low
        if dimension.holds(value):
            params[dimension.name] = value
        else:
            outside.append(dimension.name)
    return params, outside


def check_space(space: Space, base: Config, groups_of: GroupsOf, source: str) -> None:
    """Refuse a space with a point that cannot be trained, before anything is: every combination of choices, or where
    these are too many, of those that decide whether minibatches fit; and each dimension by itself, at its ends."""
    sizes = ("env.num_envs", "ppo.rollout_length", "ppo.minibatch_size", "ppo.sequence_length", "network.memory")
    few = math.prod(len(d.choices) for d in space if d.choices) <= MOST_COMBINATIONS
    together = [d.choices if d.choices and (few or d.path in sizes) else _tried(d)[:1] for d in space]
    alone = ([_tried(d) if d is one else _tried(d)[:1] for d in space] for one in space)
    points = itertools.chain(itertools.product(*together), *(itertools.product(*each) for each in alone))
    try:
        for point in itertools.islice(points, 2 * MOST_COMBINATIONS):
            _at(base, space, point, groups_of)
    except UserError as error:
        raise UserError(f"{source} has a point that cannot be trained: {error}") from None


def num_shapes(space: Space, base: Config, groups_of: GroupsOf) -> int | None:
    """How many programs the space has, at most; None where nearly every point has one of its own. Numbers are arguments
    of a program, choices and sizes are part of it."""
    count = 1
    for one in space:
        points = itertools.product(*(_tried(d) if d is one else _tried(d)[:1] for d in space))
        kinds = {split_static(_at(base, space, point, groups_of))[0] for point in points}
        if len(kinds) > 1 and not one.choices and not one.whole:
            return None
        count *= int(one.high - one.low) + 1 if len(kinds) > 1 and not one.choices else len(kinds)
    return count


def _tried(dimension: Dimension) -> tuple[Any, ...]:
    return dimension.choices or (dimension.low, dimension.high)


def _at(base: Config, space: Space, point: Sequence[Any], groups_of: GroupsOf) -> Config:
    """The checked settings at a point that has a value for each dimension, also for those that are not active there."""
    params: Params = {}
    for dimension, param in zip(space, point, strict=True):
        if not dimension.when or dimension.active(partly(base, space, params)):
            params[dimension.name] = param
    return configure(base, space, params, groups_of)


def default_space(base: Config, groups: Groups) -> Space:
    """What is searched unless the user says it: by the kind of actions, of observations, by memory, by the number of
    agents. What the `base` has is among the choices."""
    continuous = any(has_continuous(group.action_space) for group in groups.values())
    images = any(len(leaf.shape or ()) == 3 for group in groups.values() for _, leaf in leaves(group.observation_space))
    memory = base.network.memory != "none"
    config = settled(base, groups)
    samples = config.frames_per_batch * math.gcd(*(group.size for group in groups.values()))
    minibatches = samples // config.minibatch_size

    def including(path: str, *choices: Any) -> dict[str, Any]:
        own = read(config, path)
        return {"choices": [*choices, *(() if any(same(own, choice) for choice in choices) else (own,))]}

    found: dict[str, Any] = {
        "ppo.learning_rate": {"log": [1e-5, 2e-3]},
        "1 - ppo.gamma": {"log": [1e-4, 3e-2]},
        "1 - ppo.gae_lambda": {"log": [1e-3, 0.2]},
        "ppo.entropy_coef": {"log": [1e-8, 0.01 if continuous else 0.1]},
        "ppo.clip_epsilon": {"choices": [0.1, 0.2, 0.3, 0.4]},
        "ppo.max_grad_norm": {"log": [0.3, 2.0]},
        "normalize.rewards": including("normalize.rewards", True, False),
        "ppo.epochs_per_update": including("ppo.epochs_per_update", *((1, 4) if images else (1, 4, 10, 20))),
        "ppo.rollout_length": including("ppo.rollout_length", *((32, 128) if images else (32, 128, 512, 2048))),
    }
    counts = {2, 4, 8, minibatches} if memory else {4, 16, minibatches}
    fitting = [n for n in sorted(counts) if all(_fits(base, groups, rollout, n) for rollout in _rollouts(found))]
    if len(fitting) > 1:
        found["ppo.minibatch_size"] = {"minibatches": fitting}
    if images:
        found["network.hidden_sizes"] = including("network.hidden_sizes", [256], [512])
    else:
        found["network.hidden_sizes"] = including("network.hidden_sizes", [64, 64], [256, 256])
        found["normalize.observations"] = including("normalize.observations", True, False)
    if memory:
        found["network.memory_size"] = including("network.memory_size", 64, 128)
    if continuous:
        unbounded = {"when": {"network.continuous": ["gaussian", "tanh_gaussian"]}}
        found["network.initial_std"] = including("network.initial_std", 0.5, 1.0) | unbounded
    if groups.many:
        found["agents.critic"] = {"choices": ["own", "central"], "when": {"network.torso": "separate"}}
    return from_mapping(found, "the default space")


def _rollouts(found: Mapping[str, Any]) -> list[int]:
    return list(found["ppo.rollout_length"]["choices"])


def _fits(base: Config, groups: Groups, rollout: int, parts: int) -> bool:
    samples = base.env.num_envs * rollout * math.gcd(*(group.size for group in groups.values()))
    return samples % parts == 0 and samples // parts > 1
