"""The counters of a run: one frozen record, which checkpoints hold. What is read back is checked by its annotations."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from proximo.errors import UserError

Row = dict[str, Any]
"""What `metrics.jsonl` has of an update, or `result.json` of an evaluation: numbers, or None, by name."""
MOST = 2**62


class Range(NamedTuple):
    """`low <= value < high`."""

    low: float
    high: float = math.inf


@dataclass(frozen=True, eq=False)
class Columns:
    """The types of what a row must have, by name; whatever else it has is a number or None."""

    kinds: dict[str, Any]


Count = Annotated[int, Range(0, MOST)]
Seconds = Annotated[float, Range(0, MOST)]
Number = float | None
MEANS = tuple(f"{part}/{name}_mean" for part in ("rollout", "recent") for name in ("return", "length"))
SHOWN = ("ppo/clip_fraction", "ppo/approx_kl", "ppo/clip_epsilon", "time/update", "time/elapsed", "rollout/reward_mean")
"""What a row of `metrics.jsonl` has that is always a number."""
PLAYED = ("return_mean", "return_std", "return_min", "return_max")
"""What is shown of an evaluation, besides its numbers of episodes."""
UpdateRow = Annotated[
    Row,
    Columns(
        dict.fromkeys(("update", "step", "episode"), Count)
        | dict.fromkeys((*MEANS, "recent/success_rate"), Number)
        | dict.fromkeys(SHOWN, float)
        | {"time/steps_per_second": Annotated[float, Range(sys.float_info.min)]}
    ),
]
EvaluationRow = Annotated[
    Row, Columns(dict.fromkeys(("episodes", "episodes_cut"), Count) | dict.fromkeys(PLAYED, Number))
]


@dataclass(frozen=True)
class Resume:
    """A place where the run went on after a stop."""

    step: Count
    exact: bool
    """Whether the environments stood where they had stood."""


@dataclass(frozen=True)
class Counters:
    """Everything about the progress of a run that is no array, and goes on after a resume."""

    updates: Count = 0
    steps: Count = 0
    episodes: Count = 0
    skipped: Count = 0
    skipped_in_a_row: Count = 0
    best_score: float | None = None
    best_step: Count = 0
    best_average: float | None = None
    """The highest average return over `track.recent_episodes` episodes."""
    resumed: tuple[Resume, ...] = ()
    unfinished: UpdateRow | None = None
    """The row of the last update, if its evaluation was stopped."""
    unconfirmed: Count = 0
    """How often the goal was claimed, and an evaluation refused it."""
    final_eval: EvaluationRow | None = None
    """The evaluation of the last policy, if the run ended with it."""
    streak: Count = 0
    claim: float | None = None
    converged: bool = False
    goal_counts: bool = True
    """Whether reaching the goal ends the run; not when it is trained beyond it."""
    training_seconds: Seconds = 0.0
    elapsed_seconds: Seconds = 0.0
    wall_seconds: Seconds = 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: Any) -> Counters:
        """What `to_json` gave; refuses what no run has counted, which would be seen only when training has begun."""
        made: dict[str, Any] = {}
        for name, kind in typing.get_type_hints(cls, include_extras=True).items():
            try:
                made[name] = read(given[name], kind)
            except ValueError:
                raise unfit(name) from None
        counters = cls(**made)
        row, counted = counters.unfinished, (counters.updates, counters.steps, counters.episodes)
        if row is not None and (row["update"], row["step"], row["episode"]) != counted:
            raise unfit("unfinished")
        return counters


def unfit(name: str) -> UserError:
    """What is said of a file with a counter that no run has."""
    return UserError(f"Its history is not that of a run: {name} cannot be right.")


def read(value: Any, kind: Any) -> Any:
    """`value`, which comes from JSON, as the type `kind`; raises ValueError where it is not one."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _read_limited(value, *args)
    if origin in (typing.Union, types.UnionType):  # with None, of which there is one
        return None if value is None else read(value, args[0])
    if origin is tuple:
        return tuple(read(item, args[0]) for item in read(value, list))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = typing.get_type_hints(kind, include_extras=True)
        if read(value, dict).keys() != fields.keys():
            raise ValueError
        return kind(**{name: read(value[name], field) for name, field in fields.items()})
    kinds = (int, float) if kind is float else (origin or kind,)
    if type(value) not in kinds or (kind is float and type(value) is int and abs(value) >= MOST):
        raise ValueError
    return value


def _read_limited(value: Any, kind: Any, limit: Range | Columns) -> Any:
    made = read(value, kind)
    if isinstance(limit, Range):
        fits = limit.low <= made < limit.high
    else:
        fits = limit.kinds.keys() <= made.keys()
        for name, one in made.items():
            read(one, limit.kinds.get(name, Number))
    if not fits:
        raise ValueError
    return made
