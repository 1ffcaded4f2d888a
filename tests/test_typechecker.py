"""That tests run with annotations checked."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from proximo.ppo.advantages import advantages
from proximo.seeding import reset_key

ROWS, FLAGS = jnp.zeros((4, 2)), jnp.zeros((4, 2), bool)


@pytest.mark.parametrize(
    ("terminated", "last_value", "name"),
    [
        (FLAGS, jnp.zeros(3), "last_value"),  # three lanes beside two
        (FLAGS, jnp.zeros((2, 1)), "last_value"),
        (ROWS, jnp.zeros(2), "terminated"),
    ],
)
def test_arrays_of_another_shape_or_type_are_found(terminated: jnp.ndarray, last_value: jnp.ndarray, name: str) -> None:
    with pytest.raises(TypeCheckError, match=name):
        advantages(ROWS, ROWS, terminated, FLAGS, ROWS, last_value, 0.5, 0.5)


def test_sizes_are_those_of_one_call() -> None:
    for lanes in (2, 3):
        rows, flags = jnp.zeros((4, lanes)), jnp.zeros((4, lanes), bool)
        assert advantages(rows, rows, flags, flags, rows, jnp.zeros(lanes), 0.5, 0.5)[0].shape == (4, lanes)


def test_other_annotations_are_checked_too() -> None:
    with pytest.raises(TypeCheckError, match="seed"):
        reset_key("0")  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_the_check_can_be_left_out() -> None:
    with pytest.raises(TypeError, match="Cannot concatenate"):
        advantages(ROWS, ROWS, FLAGS, FLAGS, ROWS, jnp.zeros(3), 0.5, 0.5)
