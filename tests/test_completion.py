"""What a shell offers when Tab is pressed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proximo.cli.completion import assigned_settings, env_ids, preset_names, run_names


def test_environments() -> None:
    assert env_ids("CartP") == ["CartPole-v0", "CartPole-v1"]
    assert {"gymnax/", "gymnax/CartPole-v1"} <= set(env_ids("gymna"))
    assert env_ids("gymnax/CartP") == ["gymnax/CartPole-v1"]
    assert not [env_id for env_id in env_ids("") if "<" in env_id or "..." in env_id]


def test_settings_and_their_choices() -> None:
    assert assigned_settings("ppo.gam") == ["ppo.gamma="]
    assert assigned_settings("frames") == ["frames_per_batch="]
    assert assigned_settings("network.memory=") == ["network.memory=gru", "network.memory=lstm", "network.memory=none"]
    assert assigned_settings("track.mlflow=f") == ["track.mlflow=false"]
    assert assigned_settings("ppo.clip_value=") == ["ppo.clip_value=null"]
    assert assigned_settings("ppo.gamma=") == []
    assert assigned_settings("ppo.gama=") == []


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-1", "a-2", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    (tmp_path / "runs" / "a-empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_names("a") == ["a-1", "a-2"]
    assert run_names("runs/b") == ["runs/b"]


def test_presets() -> None:
    assert preset_names("doc") == ["documents"]


@pytest.mark.slow
def test_the_command_answers_a_shell() -> None:
    asked = {"COMP_WORDS": "proximo train CartPole-v1 --set ppo.gam", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'proximo'; from proximo.cli import main; main()"],
        env=os.environ | asked | {"_PROXIMO_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "ppo.gamma=", done.stderr
