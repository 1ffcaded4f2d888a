"""PPO training for any environment, in JAX."""

from typing import TYPE_CHECKING, Any

from proximo._version import __version__

if TYPE_CHECKING:
    from proximo.config import Config
    from proximo.envs.stack import FrameStacker
    from proximo.policy.agent import PPOAgent
    from proximo.train.trainer import PPOTrainer

__all__ = ["Config", "FrameStacker", "PPOAgent", "PPOTrainer", "__version__"]

_HOMES = {
    "Config": "proximo.config",
    "FrameStacker": "proximo.envs.stack",
    "PPOAgent": "proximo.policy.agent",
    "PPOTrainer": "proximo.train.trainer",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `proximo --version` and `--help` need not wait for JAX.
    if name not in _HOMES:
        raise AttributeError(f"module 'proximo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
