"""Names that other libraries have for what is no setting here, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

_DEVICE = "JAX chooses the device, or the environment variable JAX_PLATFORMS does (cpu, cuda, tpu)"
_LOUDNESS = "it is an argument of PPOTrainer (verbose=0, 1 or 2), and --quiet or --verbose on the command line"
_SDE = "gSDE is not built in, but network.std=state lets the network compute the standard deviation of actions"
_SIZES = "sizes come from the environment, or from PPOAgent(observation_dim=4, action_dim=2), handed in as agent="
_METRICS = "every run writes metrics.jsonl and is tracked in MLflow (track.mlflow, docs/tracking.md)"
_NETWORKS = "network.hidden_sizes, network.activation and others shape the networks, and network= takes your own"

ELSEWHERE = {
    "device": _DEVICE,
    "cuda": _DEVICE,
    "use_gpu": _DEVICE,
    "num_gpus": _DEVICE,
    "verbose": _LOUDNESS,
    "progress_bar": _LOUDNESS,
    "use_sde": _SDE,
    "sde_sample_freq": _SDE,
    "observation_dim": _SIZES,
    "obs_dim": _SIZES,
    "state_dim": _SIZES,
    "action_dim": _SIZES,
    "tensorboard_log": _METRICS,
    "wandb_project_name": _METRICS,
    "policy_kwargs": _NETWORKS,
    "model": _NETWORKS,
    "callback": "callbacks are handed to PPOTrainer.train(callback)",
    "callbacks": "callbacks are handed to PPOTrainer.train(callback)",
}
"""What is no setting, in lower case; each a clause that follows "There is no setting device;"."""

_TRAIN = "train() trains, for as long as total_timesteps says"
_ACT = "act(obs) gives the action, deterministic=False a drawn one"
_OTHER_ENV = "PPOTrainer(env, agent=agent) trains on another environment, evaluate_policy(agent, env, 100) plays there"
_SAVE = "agent.save(path) saves the policy; PPOTrainer.resume(run) continues a run"

TRAINER_METHODS = {
    "learn": _TRAIN,
    "fit": _TRAIN,
    "predict": f"agent.{_ACT}",
    "set_env": _OTHER_ENV,
    "get_env": "env is the environment",
    "policy": "agent is the policy",
    "save": _SAVE,
    "load": "PPOAgent.load(path) loads a policy; PPOTrainer.resume(run) continues a run",
    "set_parameters": "PPOTrainer(env, start_from=...) starts from a saved policy",
}
_TRAIN_AGENT = "PPOTrainer(env, agent=agent).train() trains it"
AGENT_METHODS = {
    "predict": _ACT,
    "get_action": _ACT,
    "compute_single_action": _ACT,
    "get_value": "value(obs) gives the value",
    "learn": _TRAIN_AGENT,
    "train": _TRAIN_AGENT,
    "set_env": _OTHER_ENV,
    "evaluate": "evaluate_policy(agent, env, 100) plays 100 episodes",
}


class HintsAtNames:
    """A class that says the right name where a method is called as another library calls it."""

    _others: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # what is missing shall be found by type checkers

        def __getattr__(self, name: str) -> Any:
            if name not in type(self)._others:
                return super().__getattribute__(name)  # raises, with the cause, should that lie in a property
            sentence = f"{type(self).__name__} has no {name}; {type(self)._others[name]}."
            raise AttributeError(sentence, name=name, obj=self)
