"""A run read back: `load_policy`, and `proximo evaluate` as a user meets it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from proximo import PPOTrainer
from proximo.errors import UserError
from proximo.rollout import evaluate
from proximo.run_dir.read import default_policy, find_run
from proximo.train.checkpoint import steps
from proximo.train.load import load_policy

SMALL: dict[str, Any] = dict(
    num_envs=2, rollout_length=8, minibatch_size=8, hidden_sizes=[8], total_timesteps=32, epochs_per_update=1
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "runs" / "tiny"
    trainer = PPOTrainer("CartPole-v1", out=path, preset=False, eval_episodes=4, workers=0, seed=3, **SMALL)
    trainer.train()
    return path


@pytest.mark.slow
def test_policies_of_a_run(run: Path) -> None:
    final, last = load_policy(run, "final").public, load_policy(run, "last").public
    step = load_policy(run, str(steps(run)[-1])).public
    obs = np.array([0.1, -0.2, 0.3, 0.1], np.float32)
    assert final.act(obs) == last.act(obs) == step.act(obs)
    assert default_policy(run) == "final"
    for one, other in zip(jax.tree.leaves(final.params["actor"]), jax.tree.leaves(last.params["actor"]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_final_policy_the_last_checkpoint_is_meant(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "models" / "final_actor.safetensors").unlink()
    assert default_policy(copy) == "last"
    with pytest.raises(UserError, match=r"has no policy final; it has .*last, "):
        load_policy(copy, "final")


def test_a_run_is_found_by_its_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent.parent)
    assert find_run(run) == run
    assert find_run(Path("tiny")).resolve() == run
    with pytest.raises(UserError, match=r"There is no run tinny.*newest runs there: tiny\."):
        find_run(Path("tinny"))


def test_the_table(run: Path, proximo: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, errors = proximo("evaluate", run, "--episodes", 5)
    assert (code, errors) == (0, "")
    first, titles, *rows, meant = printed.splitlines()
    assert first == (f"The policy final of {run} on CartPole-v1: 5 episodes, seed 3, always the most likely action.")
    assert titles.split() == ["mean", "std", "min", "max", "95", "%", "interval"]
    assert [row.split()[0] for row in rows] == ["return", "length", "success"]
    assert meant.endswith("if it terminates (track.success_return sets a return instead).")


def test_json_repeats_the_final_evaluation_of_training(run: Path, proximo: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, errors = proximo("evaluate", run, "--episodes", 4, "--json")
    assert (code, errors) == (0, "")
    found = json.loads(printed)
    result = json.loads((run / "result.json").read_text())
    about = {"run": str(run), "checkpoint": "final", "env": "CartPole-v1", "seed": 3, "deterministic": True}
    about |= {"actions": "deterministic"}
    assert found == about | result["final_eval"]


def test_drawn_actions_and_seeds(run: Path, proximo: Callable[..., tuple[int, str, str]]) -> None:
    def returns(*flags: Any) -> tuple[Any, Any]:
        found = json.loads(proximo("evaluate", run, "--episodes", 6, "--json", *flags)[1])
        return found["deterministic"], found["return_mean"]

    drawn = returns("--stochastic")
    assert drawn == returns("--stochastic", "--seed", 3)
    assert drawn[0] is False
    assert len({drawn, returns("--stochastic", "--seed", 4), returns()}) == 3


def test_video(run: Path, proximo: Callable[..., tuple[int, str, str]]) -> None:
    av = pytest.importorskip("av")
    code, printed, _ = proximo("evaluate", run, "--episodes", 1, "--json", "--video", "--checkpoint", "last")
    assert code == 0
    found = json.loads(printed)
    assert found["videos"] == [str(run / "videos" / f"last.{kind}") for kind in ("mp4", "gif")]
    with av.open(found["videos"][0]) as container:
        assert sum(1 for _ in container.decode(video=0)) == found["length_mean"] + 1


@pytest.mark.slow
def test_a_video_prints_nothing_of_its_own(run: Path) -> None:
    """Neither pygame's greeting nor a complaint about sound: a process of its own shows both."""
    command = [sys.executable, "-c", "from proximo.cli import main; main()"]
    done = subprocess.run(
        [*command, "evaluate", run, "--episodes", "1", "--json", "--video"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["episodes"] == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--checkpoint", "bset"], "has no policy bset; it has"),
        (["--checkpoint", "77"], "has no policy 77; it has"),
        (["--episodes", "0"], "--episodes must be at least 1, not '0'"),
        (["--episodes", "many"], "--episodes must be a whole number"),
        (["--seed", "-1"], "--seed must be at least 0"),
    ],
)
def test_wrong_flags(run: Path, proximo: Callable[..., tuple[int, str, str]], flags: list[str], sentence: str) -> None:
    code, printed, errors = proximo("evaluate", run, *flags)
    assert (code, printed) == (2, "")
    assert sentence in errors


def test_folders_that_are_no_runs(
    run: Path, proximo: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert proximo("evaluate", "nowhere")[0] == 2
    assert "which holds none yet" in proximo("evaluate", "nowhere")[2]
    assert "it has no config.yaml" in proximo("evaluate", tmp_path)[2]


def test_an_environment_that_no_id_makes(
    run: Path, proximo: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("CartPole-v1", "MyOwnEnv"))
    code, _, errors = proximo("evaluate", copy)
    assert code == 2
    assert "trained on MyOwnEnv, which cannot be made" in errors
    assert f'PPOAgent.load("{copy / "models" / "final_actor.safetensors"}")' in errors
    (copy / "config.yaml").write_text(config.replace("CartPole-v1", "MountainCar-v0"))
    code, _, errors = proximo("evaluate", copy)
    assert code == 2
    assert "MountainCar-v0 has Box" in errors


def test_a_missing_extra_is_named_before_anything_is_played(
    run: Path, proximo: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "av" else found(name, *rest))
    monkeypatch.setattr(evaluate, "make_evaluator", None)
    code, _, errors = proximo("evaluate", run, "--video")
    assert code == 2
    assert 'Videos need the package av; pip install "proximo[video]"' in errors


def test_both_kinds_of_actions(run: Path, proximo: Callable[..., tuple[int, str, str]]) -> None:
    """Each as it is alone; the one that scores under the usual names."""
    found = {}
    for actions in ("deterministic", "stochastic", "both"):
        code, printed, errors = proximo("evaluate", run, "--episodes", 5, "--actions", actions, "--json")
        assert (code, errors) == (0, "")
        found[actions] = json.loads(printed)
    both = found["both"]
    assert (both["actions"], both["deterministic"]) == ("both", True)
    for name in ("return_mean", "length_mean", "success_rate"):
        assert both[name] == found["deterministic"][name]
        assert both[f"stochastic/{name}"] == found["stochastic"][name]
    code, printed, _ = proximo("evaluate", run, "--episodes", 5, "--actions", "both")
    assert [line.split(",")[-1].strip() for line in printed.splitlines() if line.startswith("The policy")] == [
        "always the most likely action.",
        "actions sampled from the policy.",
    ]
    code, _, errors = proximo("evaluate", run, "--actions", "greedy")
    assert code == 2
    assert "--actions must be one of deterministic, stochastic, both" in errors
    assert proximo("evaluate", run, "--stochastic", "--actions", "both")[0] == 2
