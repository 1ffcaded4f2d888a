"""Environments made with arguments and wrappers: by id and by factory, in every family, and made again from a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from made import gymnasium_source, jax_env
from proximo import PPOTrainer, envs, run_multiple_experiments, settings
from proximo.config import Config, EnvConfig
from proximo.envs.arguments import env_key
from proximo.envs.keys import env_key as program_key
from proximo.errors import UserError
from proximo.fleet.jobs import HandedIn
from proximo.fleet.local import find_compiled, shape_of
from proximo.train.preset import fitting_preset
from proximo.yaml_file import parse

SHORT = {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 5}
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_length": 8,
    "minibatch_size": 8,
    "epochs_per_update": 1,
    "hidden_sizes": [4],
    "total_timesteps": 16,
    "eval_frequency": 0,
    "eval_episodes": 2,
}
FLAGS = [
    part
    for name, value in SMALL.items()
    for part in ("--set", f"{settings.find_keyword(name).path}={json.dumps(value)}")
]


def given(**env: Any) -> EnvConfig:
    return settings.build(settings.from_mapping({"env": env}, "test")).env


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("FrozenLake-v1", {"map_name": "8x8"}),
        ("gymnax/DeepSea-bsuite", {"size": 5}),
        pytest.param("jumanji/Snake-v1", {"num_rows": 6, "num_cols": 5}, marks=pytest.mark.slow),
        pytest.param("jaxmarl/MPE_simple_spread_v3", {"num_agents": 2}, marks=pytest.mark.slow),
        pytest.param("envpool/FrozenLake-v1", {"size": 8}, marks=pytest.mark.slow),
        pytest.param("pettingzoo/mpe2.simple_spread_v3", {"N": 2}, marks=pytest.mark.slow),
    ],
)
def test_arguments_reach_the_environments_of_each_family(env_id: str, kwargs: dict[str, Any]) -> None:
    plain, other = (envs.make(env_id, given).spec for given in (None, kwargs))
    assert plain.observation_space != other.observation_space
    assert plain.id == other.id == env_id
    with pytest.raises(UserError, match=r"^envpool|^gymnax|^jumanji|^FrozenLake|^jaxmarl|^pettingzoo"):
        envs.make(env_id, {"wrappers": 1})


@pytest.mark.slow
def test_the_physics_of_brax_is_an_argument() -> None:
    keys = {program_key(jax_env("brax/inverted_pendulum", {"backend": name})) for name in ("spring", "positional")}
    assert len(keys) == 2


def test_the_parameters_of_gymnax_are_arguments_too() -> None:
    env = jax_env("gymnax/CartPole-v1", {"gravity": 5, "max_steps_in_episode": 20})
    assert env.spec.max_steps == 20
    assert repr(env.params.gravity) == "5.0", "of the type that it has by default"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "said"),
    [
        (
            "CartPole-v1",
            {"lenght": 1},
            r"cannot be made with env\.kwargs={'lenght': 1}: TypeError: .*argument 'lenght'\.$",
        ),
        ("LunarLander-v3", {"gravity": -50}, r"AssertionError: gravity .* must be between -12 and 0\.$"),
        ("gymnax/CartPole-v1", {"lenght": 1}, "unexpected keyword argument 'lenght'"),
        ("envpool/CartPole-v1", {"lenght": 1}, "unexpected keyword argument 'lenght'"),
        ("envpool/CartPole-v1", {"num_envs": 1}, r"env\.num_envs says how many there are"),
        ("corridors/short", {"lenght": 1}, "unexpected keyword argument 'lenght'"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    env_id: str, kwargs: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    family = envs.Family("corridors", "environment_family", "environment_family", "an example")
    monkeypatch.setattr(envs, "families", lambda: envs.FAMILIES | {"corridors": family})
    with pytest.raises(UserError, match=said) as refused:
        envs.make(env_id, kwargs)
    assert "\n" not in str(refused.value)
    for wrapped in ("gymnax/CartPole-v1", "envpool/CartPole-v1", "corridors/short"):
        with pytest.raises(UserError, match=f"^{wrapped} cannot be wrapped by name"):
            envs.make(wrapped, None, [SHORT])


def test_wrappers_are_put_around_in_order() -> None:
    """Of two time limits the outer one is what Gymnasium says of the environment, and the smaller one ends it."""
    outer = {"name": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 9}
    for env in ("CartPole-v1", CartPoleEnv, CartPoleEnv()):
        source = gymnasium_source(env, None, [SHORT, outer, "gymnasium.wrappers:FlattenObservation"])
        made: Any = source.factory()
        layers: list[Any] = [made, made.env, made.env.env]
        assert [type(layer).__name__ for layer in layers] == ["FlattenObservation", "TimeLimit", "TimeLimit"]
        assert [layer._max_episode_steps for layer in layers[1:]] == [9, 5]
    source = gymnasium_source(CartPoleEnv, {"sutton_barto_reward": True})
    assert source.factory().unwrapped._sutton_barto_reward is True


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("nowhere:Wrapper", "names nowhere:Wrapper, which cannot be imported: No module named 'nowhere'"),
        ("gymnasium.wrappers:TimeLimi", "gymnasium.wrappers has no TimeLimi; did you mean TimeLimit?"),
        ("gymnasium.wrappers:__name__", "which is a str, not a wrapper"),
        (SHORT | {"max_episode_steps": -1}, "The wrapper gymnasium.wrappers:TimeLimit with {"),
        ({"name": "gymnasium.wrappers:TimeLimit"}, "missing 1 required positional argument"),
    ],
)
def test_wrong_wrappers_are_refused_in_a_sentence(wrapper: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        envs.make("CartPole-v1", None, [wrapper])
    assert said in str(refused.value)


@pytest.mark.slow
def test_agents_of_pettingzoo_are_wrapped_as_they_are_made() -> None:
    pytest.importorskip("pettingzoo")
    source: Any = envs.make(
        "pettingzoo/classic.tictactoe_v3", None, ["pettingzoo.utils.wrappers:OrderEnforcingWrapper"]
    )
    assert source.factory().aec_env.__class__.__name__ == "OrderEnforcingWrapper"
    with pytest.raises(UserError, match="only compatible with AEC"):
        envs.make("pettingzoo/classic.rps_v2", None, ["pettingzoo.utils.wrappers:OrderEnforcingWrapper"])


def test_an_object_takes_no_arguments() -> None:
    for env in (CartPoleEnv(), jax_env("gymnax/CartPole-v1")):
        with pytest.raises(UserError, match=r"is made already, and takes no env\.kwargs"):
            envs.make(env, {"gravity": 1})
    with pytest.raises(UserError, match="cannot be wrapped by name"):
        envs.make(jax_env("gymnax/CartPole-v1"), None, [SHORT])


def test_different_arguments_never_share_a_program() -> None:
    """1, 1.0 and true are equal in Python."""
    values = [1, 1.0, True, "1", [1], {"a": 1}]
    configs = [given(id="gymnax/CartPole-v1", kwargs={"gravity": value}) for value in values]
    assert len({env_key(config) for config in configs}) == len(values)
    shapes = {shape_of(Config(env=config)) for config in configs}
    assert len(shapes) == len(values)
    keys = [program_key(jax_env("gymnax/CartPole-v1", {"gravity": gravity})) for gravity in (5, 6, 6)]
    assert keys[0] != keys[1] == keys[2]
    assert None not in keys


def test_arguments_are_read_from_yaml_and_written_back() -> None:
    config = settings.build(
        {
            "env.kwargs": settings.from_env_arguments(
                [
                    "a=3e-4",
                    "b=[1, 2.5, x]",
                    "c={d: null, e: '3e-4'}",
                    "f=true",
                    "g=2024-01-31",
                    "h=-5",
                    "i='7'",
                    "j=1_000",
                ]
            ),
            "env.wrappers": settings.convert(settings.SETTINGS["env.wrappers"], ["a.b:C", SHORT]),
        }
    )
    kwargs = config.env.kwargs
    assert kwargs == {
        "a": 3e-4,
        "b": [1, 2.5, "x"],
        "c": {"d": None, "e": "3e-4"},
        "f": True,
        "g": "2024-01-31",
        "h": -5,
        "i": "7",
        "j": 1000,
    }
    again = settings.build(settings.from_mapping(parse(settings.to_yaml(config)), "test"))
    assert env_key(again.env) == env_key(config.env)
    by_json = settings.build(settings.from_mapping(json.loads(json.dumps(settings.to_mapping(config))), "test"))
    assert env_key(by_json.env) == env_key(config.env)


def test_what_no_file_could_hold_is_refused() -> None:
    for value in (object(), np.zeros(2), float("inf"), {1: 2}, {"a": {3, 4}}):
        with pytest.raises(UserError, match=r"env\.kwargs must be arguments such as"):
            settings.from_keywords({"env_kwargs": {"x": value}})
    named = settings.from_keywords({"env_kwargs": {"x": np.float32(0.5), "y": (1, np.int64(2)), "z": np.True_}})
    assert json.dumps(named["env.kwargs"]) == '{"x": 0.5, "y": [1, 2], "z": true}'
    assert settings.from_keywords({"env_kwargs": {}}) == {"env.kwargs": None}
    for wrapper in (3, "TimeLimit", {"max_episode_steps": 5}, {}, {"name": "a b:C"}):
        with pytest.raises(UserError, match=r"env\.wrappers must"):
            settings.build(settings.from_keywords({"env_wrappers": [wrapper]}))
    for texts, said in ((["a"], "takes name=value"), (["a=[1"], "followed by YAML"), (["a=1", "a=2"], "given twice")):
        with pytest.raises(UserError, match=said):
            settings.from_env_arguments(texts)


def test_a_preset_is_used_only_where_it_fits() -> None:
    tuned, unfit = fitting_preset(True, "LunarLander-v3", {"env.kwargs": {"gravity": -5}})
    assert tuned["stop.target_reward"] == 200
    assert unfit is None
    tuned, unfit = fitting_preset(True, "LunarLander-v3", {"env.kwargs": {"continuous": True}})
    assert tuned == {}
    assert unfit is not None
    assert "it is for the action space Discrete(4), and with env.kwargs and env.wrappers that is Box(-1.0, 1.0" in unfit
    flat = ["gymnasium.wrappers:FlattenObservation"]
    assert fitting_preset(True, "CartPole-v1", {"env.wrappers": flat})[0]
    assert fitting_preset("documents", "LunarLander-v3", {"env.kwargs": {"continuous": True}})[0]


def test_a_run_says_that_its_preset_does_not_fit(proximo: Callable[..., Any], tmp_path: Path) -> None:
    done = proximo(
        "train", "LunarLander-v3", "--env-arg", "continuous=true", *FLAGS, "--out", "run", "--no-mlflow", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "The preset for LunarLander-v3 is not used: it is for the action space Discrete(4)" in said
    assert "entropy bonus 0," in said, "as for continuous actions"
    again = proximo("train", "--config", "run/config.yaml", "--env-arg", "gravity=-5", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    config = settings.build(settings.from_file(tmp_path / "again" / "config.yaml"))
    assert config.env.kwargs == {"continuous": True, "gravity": -5}
    wrong = proximo("train", "LunarLander-v3", "--env-arg", "continous=true", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "unexpected keyword argument 'continous'" in " ".join(wrong.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_evaluated_and_resumed_on_the_same_environment(
    workers: int, proximo: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    made: dict[str, Any] = {"env_kwargs": {"sutton_barto_reward": True}, "env_wrappers": [SHORT], "workers": workers}
    PPOTrainer("CartPole-v1", preset=False, out=path, **made, **SMALL).train()
    done = proximo("evaluate", path, "--episodes", "3", "--json", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["length_max"] == 5
    assert summary["return_max"] == 0, "of Sutton and Barto's reward, while the pole stands"
    trainer = PPOTrainer.resume(path, steps=16)
    assert trainer.train()["total_steps"] == 32
    assert trainer.config.env.wrappers == (SHORT,)
    assert trainer.evaluate(2)["avg_length"] == 5


@pytest.mark.slow
def test_an_experiment_compares_arguments(tmp_path: Path) -> None:
    trials = {"low": {"env.kwargs": {"max_steps_in_episode": 4}}, "high": {"env.kwargs": {"max_steps_in_episode": 7}}}
    keywords = SMALL | {"preset": False, "out": tmp_path / "compiled", "seeds": 1}
    summary = run_multiple_experiments("gymnax/Pendulum-v1", trials, **keywords)
    assert [run["state"] for run in summary["runs"]] == ["complete"] * 2
    results = [json.loads(file.read_text()) for file in sorted((tmp_path / "compiled").glob("runs/*/result.json"))]
    assert [result["final_eval"]["length_mean"] for result in results] == [7, 4]
    wrapped = {"one": {"env.wrappers": [SHORT]}}
    keywords |= {"out": tmp_path / "host"}
    summary = run_multiple_experiments("Pendulum-v1", wrapped, **keywords)
    assert [run["state"] for run in summary["runs"]] == ["complete"]
    (result,) = (json.loads(file.read_text()) for file in (tmp_path / "host").glob("runs/*/result.json"))
    assert result["final_eval"]["length_mean"] == 5
    with pytest.raises(UserError, match="nowhere"):
        run_multiple_experiments("Pendulum-v1", {"one": {"env.wrappers": ["nowhere:X"]}}, **keywords | {"out": None})


def test_runs_of_one_id_with_other_arguments_are_checked_each(tmp_path: Path) -> None:
    from proximo.experiment.plan import make_plan, make_trials

    trials = make_trials({"a": {"env.kwargs": {"gravity": 1}}, "b": {"env.kwargs": {"lenght": 1}}}, None, 1)
    plan = make_plan(["gymnax/CartPole-v1"], trials, {}, {}, preset=False)
    with pytest.raises(UserError, match="lenght"):
        find_compiled([run.config for run in plan.runs], HandedIn())
