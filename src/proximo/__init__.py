"""PPO training for any environment, in JAX."""

from typing import TYPE_CHECKING, Any

from proximo._version import __version__

if TYPE_CHECKING:
    from proximo.config import Config
    from proximo.envs.host.cartpole import CartPoleWrapper
    from proximo.envs.host.pool import AsyncEnvPool
    from proximo.experiment.runner import run_multiple_experiments
    from proximo.fleet.single import run_single_experiment
    from proximo.multi_agent.team_agent import TeamAgent
    from proximo.policy.agent import PPOAgent, PPOClip
    from proximo.policy.observation import ObservationAdapter
    from proximo.ppo.loss import clip_loss
    from proximo.ppo.optimizer import scale_by_rates
    from proximo.rollout.frame_stack import FrameStacker
    from proximo.rollout.types import Rollout
    from proximo.train.env_check import check
    from proximo.train.experience import evaluate_agent, evaluate_policy
    from proximo.train.trainer import PPOTrainer

__all__ = [
    "AsyncEnvPool",
    "CartPoleWrapper",
    "Config",
    "FrameStacker",
    "ObservationAdapter",
    "PPOAgent",
    "PPOClip",
    "PPOTrainer",
    "Rollout",
    "TeamAgent",
    "__version__",
    "check",
    "clip_loss",
    "evaluate_agent",
    "evaluate_policy",
    "run_multiple_experiments",
    "run_single_experiment",
    "scale_by_rates",
]

_HOMES = {
    "AsyncEnvPool": "proximo.envs.host.pool",
    "CartPoleWrapper": "proximo.envs.host.cartpole",
    "Config": "proximo.config",
    "FrameStacker": "proximo.rollout.frame_stack",
    "ObservationAdapter": "proximo.policy.observation",
    "PPOAgent": "proximo.policy.agent",
    "PPOClip": "proximo.policy.agent",
    "PPOTrainer": "proximo.train.trainer",
    "Rollout": "proximo.rollout.types",
    "TeamAgent": "proximo.multi_agent.team_agent",
    "check": "proximo.train.env_check",
    "clip_loss": "proximo.ppo.loss",
    "evaluate_agent": "proximo.train.experience",
    "evaluate_policy": "proximo.train.experience",
    "run_multiple_experiments": "proximo.experiment.runner",
    "run_single_experiment": "proximo.fleet.single",
    "scale_by_rates": "proximo.ppo.optimizer",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `proximo --version` and `--help` need not wait for JAX.
    if name not in _HOMES:
        raise AttributeError(f"module 'proximo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
