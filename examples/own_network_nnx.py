"""Networks of your own in Flax NNX: `python examples/own_network_nnx.py`.

`nnx.split` takes a module apart into its structure, which does not change, and its state, which are the parameters.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
from flax import nnx

from proximo import PPOAgent, PPOTrainer
from proximo.policy.networks import Network


class Residual(nnx.Module):
    """A layer, a residual block, and a head."""

    def __init__(self, num_inputs: int, num_outputs: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(num_inputs, 64, rngs=rngs)
        self.block = nnx.Linear(64, 64, rngs=rngs)
        self.head = nnx.Linear(64, num_outputs, kernel_init=nnx.initializers.normal(0.01), rngs=rngs)

    def __call__(self, vector: jax.Array) -> jax.Array:
        hidden = nnx.tanh(self.first(vector))
        return self.head(hidden + nnx.tanh(self.block(hidden)))


def nnx_network(num_inputs: int, num_outputs: int) -> Network:
    structure, _ = nnx.split(Residual(num_inputs, num_outputs, nnx.Rngs(0)))

    def init(key: jax.Array, features: Any) -> tuple[Any, Any]:
        return nnx.state(Residual(num_inputs, num_outputs, nnx.Rngs(key)), nnx.Param), ()

    def apply(params: Any, carry: Any, features: Any) -> tuple[Any, jax.Array]:
        return carry, nnx.merge(structure, params)(features.vector)

    return Network(init, apply)


def network(policy: Any) -> dict[str, Network]:
    num_inputs = policy.adapter.vector_size
    return {"actor": nnx_network(num_inputs, policy.distribution.num_params), "critic": nnx_network(num_inputs, 1)}


def main(**settings: Any) -> PPOAgent:
    trainer = PPOTrainer("gymnax/CartPole-v1", network=network, **settings)
    result = trainer.train()
    print(f"Average return: {result['final_eval']['return_mean']:.1f}")
    return PPOAgent.load(trainer.path / "models" / "final_actor.safetensors", network=network)


if __name__ == "__main__":
    main(total_timesteps=int(sys.argv[1]) if sys.argv[1:] else 300_000)
