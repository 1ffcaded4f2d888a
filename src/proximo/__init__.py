"""PPO training for any environment, in JAX."""

from typing import TYPE_CHECKING, Any

from proximo._version import __version__

if TYPE_CHECKING:
    from proximo.config import Config
    from proximo.envs.stack import FrameStacker
    from proximo.experiment.runner import run_multiple_experiments, run_single_experiment
    from proximo.policy.agent import PPOAgent
    from proximo.policy.team_agent import TeamAgent
    from proximo.train.trainer import PPOTrainer

__all__ = [
    "Config",
    "FrameStacker",
    "PPOAgent",
    "PPOTrainer",
    "TeamAgent",
    "__version__",
    "run_multiple_experiments",
    "run_single_experiment",
]

_HOMES = {
    "Config": "proximo.config",
    "FrameStacker": "proximo.envs.stack",
    "PPOAgent": "proximo.policy.agent",
    "PPOTrainer": "proximo.train.trainer",
    "TeamAgent": "proximo.policy.team_agent",
    "run_multiple_experiments": "proximo.experiment.runner",
    "run_single_experiment": "proximo.experiment.runner",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `proximo --version` and `--help` need not wait for JAX.
    if name not in _HOMES:
        raise AttributeError(f"module 'proximo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
