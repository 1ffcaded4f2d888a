"""How parameters learn from samples: a loss and an optimizer, the built-in ones or a user's."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from proximo.config import PPOConfig
from proximo.errors import UserError
from proximo.ppo.loss import Loss, clip_loss
from proximo.ppo.optimizer import adam
from proximo.types import PyTree


def adam_of(ppo: PPOConfig) -> optax.GradientTransformationExtraArgs:
    """The built-in optimizer, by the settings."""
    return adam(ppo.max_grad_norm, ppo.adam_epsilon, ppo.optimizers == "separate")


@dataclass(frozen=True)
class Recipe:
    """A loss, and an optimizer made from the settings, whose numbers may be arguments of the program."""

    loss: Loss = clip_loss
    optimizer: Callable[[PPOConfig], optax.GradientTransformationExtraArgs] = adam_of

    @property
    def key(self) -> Hashable | None:
        """What it is, as part of the keys of programs; None where something is a user's own."""
        return "built-in" if self == BUILT_IN else None


BUILT_IN = Recipe()


def make_recipe(loss: Any = None, optimizer: Any = None) -> Recipe:
    """With what a user hands in: a function, and a transformation of Optax; what is None is built in."""
    if loss is not None and not callable(loss):
        raise UserError(
            f"loss is a function of (outputs, samples, hyper), see docs/own-loss.md; {type(loss).__name__} is none."
        )
    if optimizer is None:
        return Recipe(loss or clip_loss)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise UserError(
            f"optimizer is a transformation of Optax, such as optax.adam(1e-3); {type(optimizer).__name__} is none."
        )
    own = optax.with_extra_args_support(optimizer)
    return Recipe(loss or clip_loss, lambda ppo: own)


def follows_rates(optimizer: optax.GradientTransformation, params: PyTree[Float[Array, "..."]]) -> bool:
    """Whether the learning rates of the settings reach a transformation; otherwise it has rates of its own."""

    def moved(rate: Float[Array, ""]) -> tuple[PyTree, PyTree]:
        own = optax.with_extra_args_support(optimizer)
        moves: tuple[PyTree, PyTree] = own.update(
            params, own.init(params), params, learning_rate=rate, critic_learning_rate=rate
        )
        return moves

    with jax.numpy_dtype_promotion("standard"):
        steps = jax.make_jaxpr(moved)(jnp.float32(0)).jaxpr
    return any(given is steps.invars[0] for step in steps.eqns for given in step.invars)
