"""Names of other libraries that are no settings."""

from __future__ import annotations

from typing import Any

import pytest

from proximo import PPOAgent, settings
from proximo.errors import UserError
from proximo.hints import AGENT_METHODS, ELSEWHERE, TRAINER_METHODS, HintsAtNames
from proximo.multi_agent.team_agent import TeamAgent
from proximo.settings import find_setting, from_keywords
from proximo.train.trainer import PPOTrainer


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("device", "JAX_PLATFORMS"),
        ("verbose", "argument of PPOTrainer"),
        ("use_sde", "network.std=state"),
        ("observation_dim", "PPOAgent(observation_dim=4, action_dim=2)"),
        ("policy_kwargs", "network.hidden_sizes"),
        ("tensorboard_log", "metrics.jsonl"),
        ("env.frames_per_batch", "did you mean frames_per_batch?"),
        ("env_kwargs", "did you mean env.kwargs?"),
        ("hidden", "did you mean network.hidden_sizes?"),
        ("total_frames", "Proximo calls it train.total_timesteps."),
    ],
)
def test_names_lead_where_they_should(name: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        find_setting(name)
    assert str(refused.value).startswith(f"There is no setting {name}; ")
    assert hint in str(refused.value)


def test_keywords_of_python_get_the_same_hints() -> None:
    with pytest.raises(UserError, match="JAX_PLATFORMS"):
        from_keywords({"device": "cuda"})
    assert from_keywords({"env_kwargs": {"gravity": -5}}) == {"env.kwargs": {"gravity": -5}}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_elsewhere_is_no_setting(name: str) -> None:
    assert name not in {setting.name for setting in settings.SETTINGS.values()} | settings.FOREIGN_NAMES.keys()


@pytest.mark.parametrize(
    ("cls", "name", "hint"),
    [
        (PPOTrainer, "learn", "PPOTrainer has no learn; train() trains"),
        (PPOTrainer, "predict", "PPOTrainer has no predict; agent.act(obs) gives the action"),
        (PPOTrainer, "set_env", "PPOTrainer has no set_env; PPOTrainer(env, agent=agent) trains on another"),
        (PPOAgent, "predict", "PPOAgent has no predict; act(obs) gives the action"),
        (PPOAgent, "learn", "PPOAgent has no learn; PPOTrainer(env, agent=agent).train() trains it"),
        (TeamAgent, "predict", "TeamAgent has no predict; act(obs) gives the action"),
    ],
)
def test_methods_of_other_libraries_get_ours(cls: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(cls.__new__(cls), name)
    assert str(refused.value).startswith(hint)


@pytest.mark.parametrize(("cls", "names"), [(PPOTrainer, TRAINER_METHODS), (PPOAgent, AGENT_METHODS)])
def test_no_name_of_ours_is_shadowed(cls: Any, names: dict[str, str]) -> None:
    assert not set(names) & set(dir(cls))


def test_other_attributes_fail_as_they_do_anywhere() -> None:
    class Broken(HintsAtNames):
        @property
        def part(self) -> Any:
            return self.deeper  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'Broken' object has no attribute 'deeper'"):
        _ = Broken().part
    assert not hasattr(PPOTrainer.__new__(PPOTrainer), "xyzzy")
