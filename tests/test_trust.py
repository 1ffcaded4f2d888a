"""Modules that settings name are imported for folders that their user made, and for others only on request."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from proximo import PPOTrainer
from proximo.config import EnvConfig
from proximo.envs import named_modules
from proximo.errors import UserError
from proximo.experiment import runner
from proximo.experiment.plan import make_plan, make_trials
from proximo.run_dir import origin

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("Theirs-v0", entry_point=CartPoleEnv, max_episode_steps=5)
"""
SMALL: dict[str, Any] = {"num_envs": 2, "rollout_length": 8, "minibatch_size": 8, "epochs_per_update": 1}
SMALL |= {"total_timesteps": 16, "eval_episodes": 2, "eval_frequency": 0, "hidden_sizes": [4], "workers": 0}
THEIRS = "theirs_envs:Theirs-v0"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module, a run and an experiment of somebody's; `forgotten` makes this user another one."""
    (tmp_path / "theirs_envs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    gymnasium.registry.pop("Theirs-v0", None)
    sys.modules.pop("theirs_envs", None)


@pytest.mark.slow
def test_a_folder_from_elsewhere_imports_nothing(
    home: Path, proximo: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    PPOTrainer(THEIRS, out=home / "run", **SMALL).train()
    make_plan([THEIRS], make_trials(None, None, 1), {}, {}).save(home / "experiment")
    carried: list[bool] = []

    def carry_out(*given: Any) -> dict[str, Any]:
        carried.append(given[-2].trust)
        return {"runs": []}

    monkeypatch.setattr(runner, "_carry_out", carry_out)
    assert stat.S_IMODE((home / "theirs" / "proximo" / "key").stat().st_mode) == 0o600
    forget()
    assert proximo("evaluate", "run", "--episodes", "1", cwd=home).returncode == 0, "its maker may"
    shutil.move(home / "run", home / "moved")
    forget()
    assert proximo("resume", "moved", "--steps", "16", cwd=home).returncode == 0
    forget()

    monkeypatch.setenv("XDG_STATE_HOME", str(home / "ours"))
    for words in (
        ["evaluate", "moved"],
        ["resume", "moved", "--steps", "16"],
        ["experiment", "--resume", "experiment"],
    ):
        done = proximo(*words, cwd=home)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2
        assert f"{words[-1] if words[0] == 'experiment' else 'moved'} was not made here" in said
        assert "Python code that would be run: theirs_envs. If you trust it, say so: --trust" in said
    with pytest.raises(UserError, match="trust=True"):
        PPOTrainer.resume(home / "moved", steps=16)
    for words in (["runs"], ["compare", "moved", "--out", "compared"]):
        assert proximo(*words, cwd=home).returncode == 0
    assert "theirs_envs" not in sys.modules
    done = proximo("evaluate", "moved", "--episodes", "2", "--json", "--trust", cwd=home)
    assert json.loads(done.stdout)["length_mean"] == 5
    forget()
    assert proximo("resume", "moved", "--steps", "16", "--trust", cwd=home).returncode == 0
    forget()
    assert proximo("evaluate", "moved", "--episodes", "1", cwd=home).returncode == 0, "who resumed it made it theirs"
    forget()
    assert not carried
    assert proximo("experiment", "--resume", "experiment", "--trust", cwd=home).returncode == 0
    assert carried == [True]
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "theirs"))
    assert proximo("experiment", "--resume", "experiment", cwd=home).returncode == 0
    assert carried == [True, False]


@pytest.mark.slow
def test_settings_that_somebody_changed_are_not_signed(home: Path, proximo: Callable[..., Any]) -> None:
    PPOTrainer(THEIRS, out=home / "run", **SMALL).train()
    config = home / "run" / "config.yaml"
    text = config.read_text()
    for old, new in ((THEIRS, "theirs_envs:Other-v0"), ("wrappers: []", "wrappers: ['os:system']")):
        assert old in text
        config.write_text(text.replace(old, new))
        forget()
        done = proximo("evaluate", "run", cwd=home)
        assert done.returncode == 2
        assert "was not made here" in done.stderr
        assert "theirs_envs" not in sys.modules
    assert not (home / "plain" / "origin").exists()


@pytest.mark.slow
def test_without_a_key_nothing_is_signed_and_training_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    run = home / "run"
    PPOTrainer(THEIRS, out=run, **SMALL).train()
    assert not list(home.rglob(origin.ORIGIN))
    forget()
    with pytest.raises(UserError, match="was not made here"):
        PPOTrainer.resume(run, steps=16)
    assert PPOTrainer.resume(run, steps=16, trust=True).train()["total_steps"] == 32


@pytest.mark.parametrize(
    ("env_id", "wrappers", "named"),
    [
        ("CartPole-v1", (), []),
        ("gymnax/CartPole-v1", (), []),
        ("ALE/Pong-v5", (), []),
        ("theirs_envs.sub:Theirs-v0", (), ["theirs_envs.sub"]),
        ("theirs_envs:name/Space-v0", (), ["theirs_envs"]),
        ("gymnasium:CartPole-v1", (), []),  # which is imported already
        ("pettingzoo/mpe2.simple_spread_v3", (), []),
        ("pettingzoo/classic.rps_v2", (), []),
        ("pettingzoo/theirs.rps_v2", (), ["theirs.rps_v2"]),
        ("CartPole-v1", ("gymnasium.wrappers:TimeLimit", "gymnasium.wrappers.FlattenObservation"), []),
        ("CartPole-v1", ({"name": "gymnasium.wrappers:RecordVideo", "x": 1},), ["gymnasium.wrappers:RecordVideo"]),
        ("CartPole-v1", ("os:system", "gymnasium.wrappers:vector.x"), ["os:system", "gymnasium.wrappers:vector.x"]),
        ("CartPole-v1", ("gymnasium.wrappers:__getattr__",), ["gymnasium.wrappers:__getattr__"]),
    ],
)
def test_what_settings_name(env_id: str, wrappers: Any, named: list[str]) -> None:
    env = EnvConfig(id=env_id, wrappers=wrappers)
    assert named_modules(env) == named
    assert named_modules(env, handed_in=True) == (named if wrappers else [])


def test_a_signature_is_of_one_text_and_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    assert not origin.is_signed(tmp_path, "a")
    origin.sign(tmp_path, ["a", "b"])
    assert [origin.is_signed(tmp_path, text) for text in ("a", "b", "c", "")] == [True, True, False, False]
    key = tmp_path / "one" / "proximo" / "key"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "two"))
    assert not origin.is_signed(tmp_path, "a")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    key.write_bytes(b"short")
    assert not origin.is_signed(tmp_path, "a")
    origin.sign(tmp_path / "elsewhere", ["a"])
    assert not (tmp_path / "elsewhere").exists(), "no key that is too short is used"
