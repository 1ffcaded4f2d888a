"""Whether this machine can hold what a run would be made of: asked before anything is allocated."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from proximo.config import Config
from proximo.envs.groups import Groups
from proximo.errors import UserError
from proximo.policy.spaces import LARGEST, LARGEST_ACTION, space_to_json
from proximo.run_dir.files import total_memory
from proximo.spaces import leaves

OF_A_SAMPLE = 24
"""Bytes of a sample besides its observation: action, reward, value, advantage, target, log-probability."""
OF_A_WEIGHT = 16
"""Bytes: the weight, its gradient, and Adam's two moments."""


def check_needs(env_id: str, groups: Groups, config: Config) -> None:
    """Refuse spaces that no policy can be saved with, and sizes that need more memory than there is, in numbers.

    What is counted is the least that is needed: nothing is refused that would have worked.
    """
    seen = [group.observation_space for group in groups.values()]
    for group in groups.values():
        _check_space(env_id, "observation", group.observation_space, LARGEST)
        _check_space(env_id, "action", group.action_space, LARGEST_ACTION)
    if jax.default_backend() != "cpu":
        return
    sample = OF_A_SAMPLE + min(map(_bytes, seen))
    samples = config.frames_per_batch * len(groups.agents)
    numbers = f"env.num_envs={config.env.num_envs:,} * ppo.rollout_length={config.ppo.rollout_length:,}"
    _check(samples * sample, f"The {samples:,} samples of an update ({numbers}), each of {sample:,} bytes or more,")
    widths = config.network.hidden_sizes
    copies = 2 if config.network.torso == "separate" else 1
    weights = copies * sum(a * b for a, b in pairwise((min(map(_width, seen)), *widths)))
    _check(weights * OF_A_WEIGHT, f"The networks of network.hidden_sizes={list(widths)}, {weights:,} weights or more,")


def _check(needed: int, what: str) -> None:
    there = total_memory()
    if needed > there:
        raise UserError(f"{what} need {needed / 1e9:,.1f} GB of memory; this machine has {there / 1e9:,.1f} GB.")


def _check_space(env_id: str, what: str, space: Any, largest: int) -> None:
    try:
        space_to_json(space, largest)
    except UserError as error:
        raise UserError(f"{env_id} cannot be trained on with its {what} space {space}: {error}") from None


def _bytes(space: Any) -> int:
    """Of one observation, as it is stored."""
    return sum(math.prod(leaf.shape or ()) * np.dtype(leaf.dtype).itemsize for _, leaf in leaves(space))


def _width(space: Any) -> int:
    """Numbers that the first layer reads, but for images, of which an encoder makes fewer."""
    return sum(
        math.prod(leaf.shape) for _, leaf in leaves(space) if isinstance(leaf, spaces.Box) and len(leaf.shape) < 3
    )
