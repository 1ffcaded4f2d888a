"""What adapters of other people's JAX environments share."""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Iterator

import jax

from proximo.errors import UserError


@contextlib.contextmanager
def lenient() -> Iterator[None]:
    """Other libraries mix types and ranks freely, and JAX warns of some of it; our own code is tested without that,
    their code is not ours."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def unknown(family: str, name: str, names: list[str]) -> UserError:
    """For an id that the family does not have."""
    near = difflib.get_close_matches(name, names, 1, 0.4)
    hint = f"did you mean {family}/{near[0]}?" if near else f"`proximo envs {family}` lists them."
    return UserError(f"{family} has no environment {name}; {hint}")
