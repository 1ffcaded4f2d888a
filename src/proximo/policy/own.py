"""A user's own networks: what they may be, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from proximo.errors import UserError
from proximo.policy.networks import Network

Tree = Any
NAMES = ({"actor", "critic"}, {"actor", "critic", "torso"})
WANTED = '{"actor": Network(init, apply), "critic": Network(init, apply)}, with a "torso" if they share one'


def own_networks(given: Any, policy: Any) -> dict[str, Network]:
    """The networks that a user handed in: a dictionary of them, or a function from the policy to one."""
    made = given(policy) if callable(given) else given
    if not isinstance(made, Mapping) or set(made) not in NAMES:
        has = f"the entries {list(made)}" if isinstance(made, Mapping) else type(made).__name__
        raise UserError(f"network must be {WANTED}, or a function of the policy that returns this; not {has}.")
    networks = {}
    for name, pair in made.items():
        parts = [part for part in pair if part is not None] if isinstance(pair, tuple) else []
        if len(parts) not in (2, 3) or not all(map(callable, parts)):
            raise UserError(
                f"The {name} must be a Network(init, apply), a pair of functions; not {type(pair).__name__}."
            )
        networks[name] = Network(*parts)
    return networks


def check_params(params: Tree) -> None:
    """Refuse parameters that no gradient can be taken of."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"The parameter {name} of your network is {leaf.dtype}, and parameters are learnt: they must be "
                f"floating point numbers. What is not learnt belongs into `apply` itself, as a constant."
            )


def check_output(name: str, output: Any, batch: int, width: int) -> None:
    """Refuse a network whose output is not [B, width]."""
    found = getattr(output, "shape", None), str(getattr(output, "dtype", type(output).__name__))
    if found != ((batch, width), "float32"):
        what = "policy.distribution.num_params" if name == "actor" else "the value"
        raise UserError(
            f"Your {name} must give float32[B, {width}] for B observations ({what}); for {batch} it gave "
            f"{found[1]}{list(found[0] or ())}."
        )
