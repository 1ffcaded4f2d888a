"""A loss of your own, that of Simple Policy Optimization (arXiv 2401.16025): `python examples/own_loss.py`.

A loss returns named terms: a weight, and a number for each sample. The trainer takes the means over the valid samples,
minimises the weighted sum, and logs each as `loss/NAME`.
"""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp

from proximo import PPOTrainer, clip_loss
from proximo.ppo.loss import Hyper, Outputs, Terms
from proximo.ppo.samples import Samples


def spo_loss(outputs: Outputs, samples: Samples, hyper: Hyper) -> Terms:
    """r A - |A| / (2 eps) (r - 1)^2 is largest at r = 1 + eps or 1 - eps: where PPO stops pushing, this pulls back."""
    ratio, advantage = outputs.ratio, samples.advantage
    penalty = jnp.abs(advantage) / (2 * hyper.clip_epsilon) * jnp.square(ratio - 1)
    return clip_loss(outputs, samples, hyper) | {  # the critic and the entropy as ever
        "objective": (-1.0, ratio * advantage - penalty),
        "penalty": (0, penalty),  # without a weight it is logged, not learned from
    }


def main(**settings: Any) -> PPOTrainer:
    trainer = PPOTrainer("gymnax/CartPole-v1", loss=spo_loss, **settings)
    result = trainer.train()
    print(f"Average return: {result['final_eval']['return_mean']:.1f}")
    # No file holds code: hand it in again.
    return PPOTrainer.resume(trainer.path, steps=1_024, loss=spo_loss)


if __name__ == "__main__":
    main(total_timesteps=int(sys.argv[1]) if sys.argv[1:] else 300_000)
