"""Masks, in bulk: over a million sampled actions not one is illegal, and a single legal action breaks no loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import NetworkConfig, NormalizeConfig
from proximo.policy.policy import Policy
from proximo.ppo.loss import Hyper, clip_loss, minibatch_loss
from proximo.ppo.samples import Samples
from proximo.spaces import leaves, mask_shape, pick

SPACES = {
    "Categorical": spaces.Discrete(7, start=-2),
    "MultiCategorical": spaces.MultiDiscrete([3, 5, 2], start=[1, 0, -4]),
    "Bernoulli": spaces.MultiBinary(4),
    "Composite": spaces.Dict(
        kind=spaces.Discrete(4),
        bits=spaces.MultiBinary(2),
        levers=spaces.MultiDiscrete([2, 3]),
        aim=spaces.Box(-1, 1, (2,)),
    ),
}
NUM = 2**20
NETWORK = NetworkConfig(hidden_sizes=(4,))


def choices(space: spaces.Space[Any]) -> list[int]:
    """How many flags each choice has, in the order of the mask."""
    sizes = []
    for _, leaf in leaves(space):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += leaf.nvec.tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            sizes += [2] * leaf.n
    return sizes


def random_masks(space: spaces.Space[Any], num: int, single: bool) -> np.ndarray:
    """[num, M] masks that allow one action at least of each choice, or just one."""
    rng, parts = np.random.default_rng(0), []
    for size in choices(space):
        certain = np.eye(size, dtype=bool)[rng.integers(size, size=num)]
        parts.append(certain if single else certain | (rng.random((num, size)) < 0.4))
    return np.concatenate(parts, axis=1)


def chosen_flags(space: spaces.Space[Any], action: Any) -> np.ndarray:
    """[num, K] where in the mask stands what was chosen."""
    columns, offset = [], 0
    for path, leaf in leaves(space):
        taken = np.asarray(pick(action, path)).reshape(NUM, -1)
        if isinstance(leaf, spaces.Box):
            continue
        sizes = choices(leaf)
        taken = taken - (np.reshape(leaf.start, -1) if hasattr(leaf, "start") else 0)
        for component, size in enumerate(sizes):
            assert ((taken[:, component] >= 0) & (taken[:, component] < size)).all()
            columns.append(offset + taken[:, component])
            offset += size
    return np.stack(columns, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_no_sampled_action_is_illegal(name: str) -> None:
    space = SPACES[name]
    distribution = Policy(spaces.Box(-1, 1, (1,)), space, NETWORK, NormalizeConfig()).distribution
    masks = random_masks(space, NUM, single=False)
    # Logits up to thousands apart, of which the greatest are mostly forbidden.
    params = np.random.default_rng(1).standard_t(1.5, (NUM, distribution.num_params)).astype(np.float32) * 10
    params[:, distribution.num_params - distribution.num_log_std :] = 0

    def act(params: Any, key: jax.Array, mask: Any) -> tuple[Any, Any]:
        action = distribution.sample(params, distribution.noise(key, (NUM,)), mask)
        return distribution.to_env(action), distribution.to_env(distribution.mode(params, mask))

    shaped = masks.reshape(NUM, *mask_shape(space))
    for action in jax.jit(act)(params, jax.random.key(0), shaped):
        flags = chosen_flags(space, action)
        assert flags.shape == (NUM, len(choices(space)))
        assert np.take_along_axis(masks, flags, axis=1).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_the_loss_is_finite_with_a_single_legal_action(name: str) -> None:
    space, num = SPACES[name], 64
    policy = Policy(spaces.Box(-1, 1, (1,)), space, NETWORK, NormalizeConfig())
    mask = jnp.asarray(random_masks(space, num, single=True).reshape(num, *mask_shape(space)))
    obs = jnp.linspace(-1, 1, num)[:, None]

    def loss(params: Any, key: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        carry = policy.initial_carry(num)
        outputs = 1e3 * policy.act(params, None, carry["actor"], obs)[1]
        action = policy.distribution.sample(outputs, policy.distribution.noise(key, (num,)), mask)
        samples = Samples(
            obs=obs,
            action_mask=mask,
            action=action,
            log_prob=policy.distribution.log_prob(outputs, action, mask),
            value=jnp.zeros(num),
            advantage=jnp.linspace(-2, 2, num),
            target=jnp.ones(num),
            valid=jnp.ones(num, bool),
        )
        samples = jax.lax.stop_gradient(samples)
        return minibatch_loss(params, None, samples, policy, clip_loss, Hyper(0.2, 0.01, 0.5, None), True)

    params = jax.jit(policy.init)(jax.random.key(0))
    (total, metrics), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, jax.random.key(1))
    assert np.isfinite(total)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((metrics, gradients)))
    if name != "Composite":  # what is certain has no entropy, and its probability cannot move
        assert metrics["loss/entropy"] == metrics["ppo/approx_kl"] == 0
