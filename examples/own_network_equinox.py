"""Networks of your own in Equinox: `pip install equinox`, then `python examples/own_network_equinox.py`.

A module is a tree of arrays and of what is not an array; only the arrays are parameters. They share a torso here: what
it gives is what actor and critic read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from proximo import PPOAgent, PPOTrainer
from proximo.policy.networks import Network


def equinox_network(make: Callable[[jax.Array], Any], read: Callable[[Any], jax.Array]) -> Network:
    """`make(key)` gives the module, for one observation; `read` what it reads of the features."""
    _, static = eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)

    def init(key: jax.Array, features: Any) -> tuple[Any, Any]:
        return eqx.filter(make(key), eqx.is_inexact_array), ()

    def apply(params: Any, carry: Any, features: Any) -> tuple[Any, jax.Array]:
        return carry, jax.vmap(eqx.combine(params, static))(read(features))

    return Network(init, apply)


def network(policy: Any) -> dict[str, Network]:
    num_inputs, num_outputs = policy.adapter.vector_size, policy.distribution.num_params
    return {
        "torso": equinox_network(
            lambda key: eqx.nn.MLP(num_inputs, 64, 64, 1, jax.nn.tanh, jax.nn.tanh, key=key), lambda seen: seen.vector
        ),
        "actor": equinox_network(lambda key: eqx.nn.Linear(64, num_outputs, key=key), lambda hidden: hidden),
        "critic": equinox_network(lambda key: eqx.nn.Linear(64, 1, key=key), lambda hidden: hidden),
    }


def main(**settings: Any) -> PPOAgent:
    trainer = PPOTrainer("gymnax/CartPole-v1", network=network, **settings)
    result = trainer.train()
    print(f"Average return: {result['final_eval']['return_mean']:.1f}")
    return PPOAgent.load(trainer.path / "models" / "final_actor.safetensors", network=network)


if __name__ == "__main__":
    main(total_timesteps=int(sys.argv[1]) if sys.argv[1:] else 300_000)
