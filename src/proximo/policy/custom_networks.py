"""What a user hands in instead of built-in parts of a policy: what that may be, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from proximo.config import NetworkConfig
from proximo.errors import UserError
from proximo.policy.distributions import Distribution
from proximo.policy.networks import Network
from proximo.types import PyTree

NAMES = ({"actor", "critic"}, {"actor", "critic", "torso"})
WANTED = '{"actor": Network(init, apply), "critic": Network(init, apply)}, with a "torso" if they share one'


class Own(NamedTuple):
    """Networks, and a function from an action space and the settings to a distribution; None for the built-in ones."""

    network: Any = None
    distribution: Callable[[spaces.Space[Any], NetworkConfig], Distribution] | None = None


def own_parts(network: Any, distribution: Any) -> Any:
    """Both as one, as policies and agents take it; None if both are built in."""
    return network if distribution is None else Own(network, distribution)


def as_own(given: Any) -> Own:
    return given if isinstance(given, Own) else Own(given)


def check_distribution(distribution: Any, space: spaces.Space[Any]) -> None:
    """Refuse what cannot draw actions of `space`, before anything is compiled."""
    if not isinstance(distribution, Distribution):
        raise UserError(
            f"distribution is a function of an action space and the settings under `network`; it returns a "
            f"Distribution of proximo.policy.distributions with all its methods; {type(distribution).__name__} is none."
        )

    def one(params: PyTree, key: jax.Array) -> tuple[PyTree, PyTree, PyTree]:
        action = distribution.sample(params, distribution.noise(key, (2,)))
        return distribution.log_prob(params, action), distribution.entropy(params), distribution.to_env(action)

    params = jnp.zeros((2, distribution.num_params))
    log_prob, entropy, _ = jax.eval_shape(one, params, jax.random.key(0))
    for name, found in (("log_prob", log_prob), ("entropy", entropy)):
        if (found.shape, found.dtype) != ((2,), jnp.float32):
            raise UserError(
                f"Your distribution's {name} must be float32[B] for B actions of {space}; for 2 it is "
                f"{found.dtype}{list(found.shape)}."
            )


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


def check_params(params: PyTree) -> None:
    """Refuse parameters that no gradient can be taken of."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"The parameter {name} of your network is {leaf.dtype}, and parameters are learnt: they must be "
                f"floating point numbers. What is not learnt belongs in `apply` itself, as a constant."
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
