"""An optimizer of your own, from Optax: `python examples/own_optimizer.py`.

Here the critic has one that is slower to forget, and weights that decay. Parameters are a dictionary with the entries
"actor" and "critic" (and "torso", where they share one). `scale_by_rates` as the last of the chain makes it follow
`ppo.learning_rate` and its schedule; without it, the chain has a rate of its own.
"""

from __future__ import annotations

import sys
from typing import Any

import optax

from proximo import PPOTrainer, scale_by_rates

OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(0.5),
    optax.partition(
        {
            "actor": optax.scale_by_adam(eps=1e-5),
            "critic": optax.chain(optax.scale_by_amsgrad(b2=0.9999, eps=1e-5), optax.add_decayed_weights(1e-4)),
        },
        lambda params: {name: name for name in params},
    ),
    scale_by_rates(),
)


def main(**settings: Any) -> PPOTrainer:
    rates: dict[str, Any] = {"learning_rate": 1e-3, "learning_rate_schedule": "linear"}
    trainer = PPOTrainer("gymnax/CartPole-v1", optimizer=OPTIMIZER, **rates, **settings)
    result = trainer.train()
    print(f"Average return: {result['final_eval']['return_mean']:.1f}")
    # Its state is in the checkpoint, what it does is not: hand it in again.
    return PPOTrainer.resume(trainer.path, steps=1_024, optimizer=OPTIMIZER)


if __name__ == "__main__":
    main(total_timesteps=int(sys.argv[1]) if sys.argv[1:] else 300_000)
