"""A policy as MLflow runs it: `mlflow.pyfunc.load_model(...)` loads it from here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proximo.policy.agent import PPOAgent


class PyFunc:
    """The policy of a file, with MLflow's word for acting."""

    def __init__(self, agent: PPOAgent):
        self.agent = agent

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """The most likely action for one observation or a batch; `params={"deterministic": False}` draws one.

        A policy with memory takes each call for the start of episodes, unless `params={"goes_on": True}`.
        """
        if not (params or {}).get("goes_on", False):
            self.agent.reset()
        obs = model_input.to_numpy() if hasattr(model_input, "to_numpy") else model_input  # a table has one in each row
        return self.agent.act(obs, deterministic=(params or {}).get("deterministic", True))


def _load_pyfunc(path: str) -> PyFunc:
    return PyFunc(PPOAgent.load(Path(path)))
