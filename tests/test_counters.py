"""Counters go through JSON unchanged; what is read back is checked by the annotations of their fields."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Annotated, Any

import pytest

from proximo.errors import UserError
from proximo.train.counters import MEANS, PLAYED, SHOWN, Counters, Range, Resume, read

ROW = {
    "update": 7,
    "step": 56,
    "episode": 3,
    "time/steps_per_second": 10.5,
    "recent/success_rate": None,
    **dict.fromkeys(SHOWN, 0.5),
    **dict.fromkeys(MEANS, None),
}
EVALUATION = {"episodes": 3, "episodes_cut": 0, **dict.fromkeys(PLAYED, 1.5)}
SOME = Counters(
    updates=7,
    steps=56,
    episodes=3,
    best_score=1.5,
    resumed=(Resume(16, True), Resume(40, False)),
    unfinished=ROW,
    final_eval=EVALUATION,
    wall_seconds=2,
)
NAMES = [field.name for field in dataclasses.fields(Counters)]


def as_json(counters: Counters = SOME) -> Any:
    return json.loads(json.dumps(counters.to_json()))


def test_what_was_counted_is_read_back() -> None:
    assert Counters.from_json(as_json()) == SOME
    assert Counters.from_json(as_json(Counters())) == Counters()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["7", {"a": "b"}, [[]], -1.5j, 10**400], ids=lambda value: type(value).__name__)
def test_what_no_run_has_counted_is_named(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^Its history is not that of a run: {name} cannot be right.$"):
        Counters.from_json(as_json() | {name: value})


def test_every_counter_has_a_limit_of_its_own() -> None:
    """A whole number, or seconds: nothing else is counted up, and both have a range in their annotation."""
    hints = typing.get_type_hints(Counters, include_extras=True)
    for name, kind in hints.items():
        if type(getattr(Counters(), name)) in (int, float):
            assert typing.get_origin(kind) is Annotated, name
            assert isinstance(kind.__metadata__[0], Range), name


LESS = {name: value for name, value in ROW.items() if name != "time/update"}


@pytest.mark.parametrize(
    "row", [LESS, *(ROW | one for one in ({"update": 6}, {"step": 64}, {"x": "1"}, {"time/steps_per_second": 0}))]
)
def test_the_row_that_waits_for_its_evaluation_is_that_of_the_last_update(row: Any) -> None:
    with pytest.raises(UserError, match="unfinished cannot be right"):
        Counters.from_json(as_json() | {"unfinished": row})


def test_types_are_read_strictly() -> None:
    assert read(3, float) == 3
    assert read(None, float | None) is None
    assert read([1, 2], tuple[int, ...]) == (1, 2)
    for value, kind in (
        (True, int),
        (True, float),
        (1, bool),
        (1.0, int),
        ("1", float),
        (None, float),
        ((1,), tuple[int]),
    ):
        with pytest.raises(ValueError, match=r"^$"):
            read(value, kind)
