"""How parameters learn from samples: a loss and an optimizer, the built-in ones or a user's."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import optax

from proximo.config import PPOConfig
from proximo.ppo.loss import Loss, clip_loss
from proximo.ppo.optimizer import adam


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
