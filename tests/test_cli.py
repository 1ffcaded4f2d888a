"""The command line as a user meets it: exit codes, sentences, files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import typer

from proximo import __version__
from proximo.cli.common import Commands, app
from proximo.envs import FAMILIES, Family
from proximo.errors import UserError
from proximo.plots.pictures import PICTURES

COMMAND = [sys.executable, "-c", "from proximo.cli import main; main()"]
SMALL = ["--set", "env.num_envs=4", "--set", "ppo.rollout_length=16", "--set", "ppo.minibatch_size=32"]
SMALL += ["--set", "ppo.epochs_per_update=2", "--set", "eval.episodes=2", "--set", "eval.frequency=0", "--no-preset"]


def command(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, with_pictures: Callable[[], AbstractContextManager[None]]
) -> tuple[Any, Any]:
    path = tmp_path_factory.mktemp("cli") / "run"
    args = ["train", "gymnax/CartPole-v1", "--steps", "640", "--seed", "3", "--out", path, *SMALL]
    with with_pictures():
        return command(*args, cwd=path.parent), path


@pytest.mark.slow
def test_train(run: tuple[Any, Any]) -> None:
    done, path = run
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"64 / 640 steps   return \S+   [\d,]+ steps/s   \d+ s left", done.stdout)
    assert "The budget is used up" in done.stdout
    assert "evaluation" in done.stdout
    assert json.loads((path / "result.json").read_text())["seed"] == 3
    drawn = {file.name for file in (path / "plots").glob("*.png")}
    assert drawn == {f"{name}.png" for name in PICTURES} - {"own_metrics.png"}


@pytest.mark.slow
def test_the_same_seed_twice_gives_the_same_rows(run: tuple[Any, Any], tmp_path: Path) -> None:
    """A second process, from the configuration that the first one wrote."""
    _, path = run
    again = command("train", "--config", path / "config.yaml", "--out", tmp_path / "again", "--quiet", cwd=tmp_path)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")

    def timeless(folder: Path) -> list[dict[str, Any]]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]

    assert timeless(tmp_path / "again") == timeless(path)


@pytest.mark.slow
def test_verbose_block(tmp_path: Path, proximo: Callable[..., Any]) -> None:
    done = proximo("train", "gymnax/CartPole-v1", "--steps", "64", "--out", tmp_path / "run", "--verbose", *SMALL)
    assert done.returncode == 0, done.stderr
    block = done.stdout[done.stdout.index("=====") : done.stdout.rindex("=====")]
    titles = [line for line in block.splitlines() if line.isupper()]
    assert titles == ["ROLLOUT STATISTICS", "RECENT 100 EPISODES", "TRAINER STATISTICS"]
    names = re.findall(r"^  (\w+):", block, re.MULTILINE)
    assert names == [
        *(
            "mean_ep_len",
            "mean_ep_return",
            "mean_reward",
            "mean_clipped_ratio",
            "approx_kl",
            "rollout_len",
            "time_elapsed",
        ),
        *("mean_ep_len", "mean_ep_return", "success_rate"),
        *("episodes_count", "timesteps_count", "rollouts_count", "total_timesteps", "clip_range"),
    ]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["train"], "Name an environment to train on"),
        (["train", "gymnax/CartPol-v1"], "did you mean gymnax/CartPole-v1"),
        (["train", "CartPole"], "did you mean CartPole-v1"),
        (["train", "gymnax/CartPole-v1", "--steps", "many"], "must be a whole number, not 'many'"),
        (["train", "gymnax/CartPole-v1", "--seed", "-1"], "seed must be at least 0"),
        (["train", "gymnax/CartPole-v1", "--set", "ppo.clip_range=0.1"], "Proximo calls it ppo.clip_epsilon"),
        (["train", "gymnax/CartPole-v1", "--set", "ppo.gama=0.1"], "did you mean ppo.gamma"),
        (["train", "gymnax/CartPole-v1", "--no-preset", "--set", "ppo.minibatch_size=100"], "does not divide the 2048"),
        (["train", "gymnax/CartPole-v1", "--config", "nowhere.yaml"], "Cannot read the configuration nowhere.yaml"),
        (["train", "gymnax/CartPole-v1", "--quiet", "--verbose"], "cannot be used together"),
        (["train", "gymnax/CartPole-v1", "--preset", "document"], "no preset document; did you mean documents?"),
        (
            ["train", "gymnax/CartPole-v1", "--preset", "documents", "--no-preset"],
            "--no-preset cannot be used together",
        ),
        (["experiment", "gymnax/CartPole-v1", "--preset", "document"], "no preset document; did you mean documents?"),
        (["settings", "nothing-like-it"], "No setting mentions"),
        (["resume", "nowhere"], "There is no run nowhere"),
        (["resume", "nowhere", "--steps", "0"], "--steps must be at least 1, not"),
        (["resume", "nowhere", "--quiet", "--verbose"], "cannot be used together"),
        (["evaluate", "nowhere"], "There is no run nowhere"),
    ],
)
def test_mistakes_end_in_a_sentence(
    args: list[str], sentence: str, tmp_path: Path, proximo: Callable[..., Any]
) -> None:
    done = proximo(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir()), "a mistake must leave no run behind"


def test_a_mistake_ends_the_process(tmp_path: Path) -> None:
    done = command("settings", "nothing-like-it", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No setting mentions" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupts_save_and_exit(number: int, code: int, tmp_path: Path, proximo: Callable[..., Any]) -> None:
    path = tmp_path / "run"
    args = ["train", "gymnax/CartPole-v1", "--steps", "1_000_000_000", "--out", str(path), *SMALL]
    process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (path / "metrics.jsonl").exists() or not (path / "metrics.jsonl").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Interrupted" in output
    assert "Traceback" not in errors
    result = json.loads((path / "result.json").read_text())
    assert result["stop_reason"] == "interrupted"
    assert (path / "models" / "final_actor.safetensors").exists()
    if number == signal.SIGTERM:
        return  # once is enough
    done = proximo("resume", path, "--steps", "1_000")
    assert done.returncode == 0, done.stderr
    assert f"Resumed after {result['total_steps']:,} steps." in done.stdout
    assert json.loads((path / "result.json").read_text())["total_steps"] >= result["total_steps"] + 1000


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(tmp_path: Path, proximo: Callable[..., Any]) -> None:
    (tmp_path / "file").write_text("")
    done = proximo("train", "gymnax/CartPole-v1", "--out", tmp_path / "file" / "run", *SMALL)
    assert done.returncode == 2
    assert "Cannot write the run to" in done.stderr


@pytest.mark.slow
def test_envs(proximo: Callable[..., Any]) -> None:
    done = proximo("envs", "pole")
    assert done.returncode == 0
    assert "gymnax/CartPole-v1" in done.stdout
    assert "gymnax/Acrobot-v1" not in done.stdout
    assert "gymnax/Acrobot-v1" in proximo("envs", "gymnax").stdout
    with pytest.raises(UserError, match="No installed environment has 'nothing-like-it'"):
        app(["envs", "nothing-like-it"], standalone_mode=False)


def test_envs_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    absent = Family("nowhere", "package_that_is_not_there", "proximo.envs.nowhere", "games", extra="nowhere")
    monkeypatch.setitem(FAMILIES, "nowhere", absent)
    app(["envs"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert 'nowhere  games; not installed: pip install "proximo[nowhere]"' in printed
    assert "gymnax/CartPole-v1" in printed


def test_settings(proximo: Callable[..., Any]) -> None:
    done = proximo("settings", "clip")
    assert done.returncode == 0
    assert "ppo.clip_epsilon" in done.stdout
    assert "0.2" in done.stdout


def test_version_and_help(proximo: Callable[..., Any]) -> None:
    assert command("--version").stdout.strip() == f"proximo {__version__}"
    assert "train" in proximo("--help").stdout
    shown = proximo("train", "--help").stdout
    for word in ("--steps", "--seed", "--out", "--config", "--set", "--quiet", "--verbose", "Examples"):
        assert word in shown


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["--lr", "3e-4"], "There is no option --lr; write --set ppo.learning_rate=3e-4."),
        (["--lr=3e-4"], "There is no option --lr; write --set ppo.learning_rate=3e-4."),
        (["--n-envs", "8"], "There is no option --n-envs; write --set env.num_envs=8."),
        (["--gamma", "0.9"], "There is no option --gamma; write --set ppo.gamma=0.9."),
        (["--ppo.gamma", "0.9"], "There is no option --ppo.gamma; write --set ppo.gamma=0.9."),
        (["--total-timesteps", "1000"], "There is no option --total-timesteps; write --steps 1000."),
        (["--frames-per-batch", "512"], "There is no option --frames-per-batch; write --set frames_per_batch=512."),
        (
            ["--num-minibatches", "4"],
            "--set ppo.minibatch_size=4 (the size of a minibatch, not how many there are).",
        ),
        (["--norm-obs"], "There is no option --norm-obs; write --set normalize.observations=VALUE."),
        (["--capture-video", "--quiet"], "There is no option --capture-video; write --video."),
        (["--device", "cuda"], "There is no option --device; JAX chooses the device, or the environment variable"),
        (["--env", "CartPole-v1"], "There is no option --env; the environment's id stands alone"),
    ],
)
def test_options_of_other_libraries_get_ours(args: list[str], hint: str) -> None:
    with pytest.raises(UserError) as refused:
        app(["train", "CartPole-v1", *args], standalone_mode=False)
    assert hint in str(refused.value)


def test_an_option_that_another_command_has_is_not_named() -> None:
    with pytest.raises(UserError, match=r"no option --video; write --set track\.video=VALUE\.$"):
        app(["experiment", "CartPole-v1", "--video"], standalone_mode=False)


def test_options_and_commands_like_no_other_are_refused(proximo: Callable[..., Any]) -> None:
    assert "No such option: --xyzzy" in proximo("train", "CartPole-v1", "--xyzzy").stderr
    assert "There is no command learn; `proximo train` does that." in proximo("learn", "CartPole-v1").stderr


def test_help_lists_train_first() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    assert group.list_commands(None)[:3] == ["train", "resume", "evaluate"]
    assert sorted(group.list_commands(None)) == sorted(group.commands)
