"""Networks of your own in Flax Linen: `python examples/own_network_linen.py`.

A network is a pair of pure functions, `Network(init, apply)`; `network(policy)` gives one for the actor and one for the
critic. What they read is a `Features`: `vector` [B, D] and `images`, each [B, H, W, C].
"""

from __future__ import annotations

import sys
from typing import Any

import flax.linen as nn
import jax

from proximo import PPOAgent, PPOTrainer
from proximo.policy.networks import Network


class Gated(nn.Module):
    """Two layers, the second gated by a third."""

    num_outputs: int

    @nn.compact
    def __call__(self, vector: jax.Array) -> jax.Array:
        hidden = nn.tanh(nn.Dense(64)(vector))
        hidden = nn.tanh(nn.Dense(64)(hidden)) * nn.sigmoid(nn.Dense(64)(hidden))
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.normal(0.01))(hidden)


def linen_network(num_outputs: int) -> Network:
    module = Gated(num_outputs)

    def init(key: jax.Array, features: Any) -> tuple[Any, Any]:
        return module.init(key, features.vector)["params"], ()  # no memory

    def apply(params: Any, carry: Any, features: Any) -> tuple[Any, jax.Array]:
        outputs: Any = module.apply({"params": params}, features.vector)
        return carry, outputs

    return Network(init, apply)


def network(policy: Any) -> dict[str, Network]:
    return {"actor": linen_network(policy.distribution.num_params), "critic": linen_network(1)}


def main(**settings: Any) -> PPOAgent:
    trainer = PPOTrainer("gymnax/CartPole-v1", network=network, **settings)
    result = trainer.train()
    print(f"Average return: {result['final_eval']['return_mean']:.1f}")
    # A file holds the parameters, not the code: hand that in again.
    return PPOAgent.load(trainer.path / "models" / "final_actor.safetensors", network=network)


if __name__ == "__main__":
    main(total_timesteps=int(sys.argv[1]) if sys.argv[1:] else 300_000)
