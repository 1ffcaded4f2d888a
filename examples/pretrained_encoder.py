"""Bring an encoder that was trained before: `python examples/pretrained_encoder.py`, with `--finetune` to train it on.

An autoencoder learns what MinAtar Breakout looks like, from the observations of a random policy. Its encoder then
stands before actor and critic: frozen, or as a start. Either way it is among the parameters, so that it is saved with
the policy; frozen, no gradient reaches it.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from proximo import PPOAgent, PPOTrainer, envs
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.policy.networks import Network

ENV = "gymnax/Breakout-MinAtar"
PIXELS, WIDTH = 10 * 10 * 4, 64


def layer(key: jax.Array, num_inputs: int, num_outputs: int, scale: float = 1.0) -> dict[str, jax.Array]:
    kernel = jax.random.normal(key, (num_inputs, num_outputs)) * scale / num_inputs**0.5
    return {"kernel": kernel, "bias": jnp.zeros(num_outputs)}


def linear(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"][None]


def encode(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    return jax.nn.relu(linear(params, images.reshape(images.shape[0], PIXELS)))


def random_observations(num_steps: int, num_envs: int = 16) -> jax.Array:
    """[N, 10, 10, 4] what a random policy sees."""
    source: Any = envs.make(ENV)
    env, num_actions = VectorizedEnv(source, num_envs), source.spec.action_space.n

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        action = jax.random.randint(key, (num_envs,), 0, num_actions)
        state, moved = env.step(key, state, {ONE: action})
        return state, moved.groups[ONE].obs

    state, _ = env.reset(jax.random.key(0))
    _, seen = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), num_steps))
    return seen.reshape(-1, *seen.shape[2:]).astype(jnp.float32)


def pretrained(observations: jax.Array, num_updates: int) -> dict[str, jax.Array]:
    """The encoder of an autoencoder that restores `observations`."""
    keys = jax.random.split(jax.random.key(2), 3)
    params = {"encoder": layer(keys[0], PIXELS, WIDTH), "decoder": layer(keys[1], WIDTH, PIXELS)}
    optimizer = optax.sgd(0.5, momentum=0.9)

    def loss(params: Any, images: jax.Array) -> jax.Array:
        restored = linear(params["decoder"], encode(params["encoder"], images))
        flat = images.reshape(images.shape[0], PIXELS)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(restored, flat))

    def update(learner: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        params, state = learner
        rows = jax.random.randint(key, (256,), 0, observations.shape[0])
        error, gradients = jax.value_and_grad(loss)(params, observations[rows])
        changes, state = optimizer.update(gradients, state)
        return (optax.apply_updates(params, changes), state), error

    learner, errors = jax.lax.scan(update, (params, optimizer.init(params)), jax.random.split(keys[2], num_updates))
    print(f"Autoencoder: error {errors[0]:.4f} before, {errors[-1]:.4f} after.")
    return learner[0]["encoder"]


def encoded_network(encoder: dict[str, jax.Array], num_outputs: int, finetune: bool) -> Network:
    def init(key: jax.Array, features: Any) -> tuple[Any, Any]:
        first, second = jax.random.split(key)
        own = {"hidden": layer(first, WIDTH, 64, 2**0.5), "head": layer(second, 64, num_outputs, 0.01)}
        return {"encoder": encoder, **own}, ()

    def apply(params: Any, carry: Any, features: Any) -> tuple[Any, jax.Array]:
        first = params["encoder"] if finetune else jax.lax.stop_gradient(params["encoder"])
        hidden = jax.nn.relu(linear(params["hidden"], encode(first, features.images[0])))
        return carry, linear(params["head"], hidden)

    return Network(init, apply)


def network(policy: Any, encoder: dict[str, jax.Array], finetune: bool) -> dict[str, Network]:
    sizes = {"actor": policy.distribution.num_params, "critic": 1}
    return {name: encoded_network(encoder, size, finetune) for name, size in sizes.items()}


def main(finetune: bool = False, num_updates: int = 2_000, **settings: Any) -> tuple[Any, PPOAgent]:
    """The encoder as it came, and the agent that uses it."""
    encoder = pretrained(random_observations(500), num_updates)
    trainer = PPOTrainer(ENV, network=partial(network, encoder=encoder, finetune=finetune), **settings)
    result = trainer.train()
    print(f"Average return: {result['final_eval']['return_mean']:.1f}")
    return encoder, trainer.agent


if __name__ == "__main__":
    main("--finetune" in sys.argv, total_timesteps=2_000_000)
