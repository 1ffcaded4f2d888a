"""docs/coming-from.md, row by row: what stands in the middle column is there, by its kind."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import proximo
from proximo import PPOTrainer, settings
from proximo.cli.common import app
from proximo.train.callbacks import EVENTS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
ROWS = [
    (kind, ours)
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| There", "|--"))
    for theirs, ours, kind in [re.findall(r"\|\s*([^|]*?)\s*(?=\|)", line)]
]
SMALL: dict[str, Any] = dict(
    num_envs=4, rollout_length=32, minibatch_size=64, epochs_per_update=1, hidden_sizes=[8], eval_episodes=2
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, with_pictures: Callable[[], AbstractContextManager[None]]) -> Path:
    path = tmp_path_factory.mktemp("run") / "cartpole"
    with with_pictures():
        PPOTrainer("CartPole-v1", preset=False, total_timesteps=640, eval_frequency=2, out=path, **SMALL).train()
    return path


def rows_of(*kinds: str) -> list[Any]:
    return [pytest.param(ours.strip("`"), id=ours.strip("`")) for kind, ours in ROWS if kind in kinds]


def test_every_row_is_of_a_kind_that_is_tested_here() -> None:
    kinds = {"command", "Python", "keyword", "setting", "metric", "file", "callback", "trainer", "example"}
    assert {kind for kind, _ in ROWS} == kinds
    assert len(ROWS) > 60


@pytest.mark.slow
@pytest.mark.parametrize("ours", rows_of("command"))
def test_commands(ours: str) -> None:
    first, *rest = shlex.split(ours)
    if first == "python":
        done = subprocess.run([sys.executable, *rest, "--version"], capture_output=True, text=True, check=True)
        assert proximo.__version__ in done.stdout
    else:
        assert CliRunner().invoke(app, [*rest, "--help"]).exit_code == 0


@pytest.mark.parametrize("ours", rows_of("Python"))
def test_python_names(ours: str) -> None:
    found, names = proximo, ours.split(".")[1:]
    for number, name in enumerate(names, 2):
        if not hasattr(found, name):
            importlib.import_module(".".join(ours.split(".")[:number]))
        found = getattr(found, name)


@pytest.mark.parametrize("ours", rows_of("keyword"))
def test_keywords(ours: str) -> None:
    given = eval(f"dict({ours})")
    values = settings.from_keywords(given)
    assert set(values.values()) == set(given.values())
    settings.build(values)


@pytest.mark.parametrize("ours", rows_of("setting"))
def test_settings(ours: str) -> None:
    assert ours in settings.SETTINGS


@pytest.mark.slow
@pytest.mark.parametrize("ours", rows_of("metric"))
def test_metrics(ours: str, run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get(ours) is not None for row in rows)


@pytest.mark.slow
def test_metrics_that_troubleshooting_names(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:rollout|recent|buffer|loss|ppo|eval|time)/[a-z_]+|skipped)`", page))
    assert len(named) > 12
    assert named <= {name for row in rows for name in row}


@pytest.mark.slow
@pytest.mark.pictures
@pytest.mark.parametrize("ours", rows_of("file"))
def test_files(ours: str, run: Path) -> None:
    assert (run / ours).is_file()


@pytest.mark.parametrize("ours", rows_of("callback"))
def test_callbacks(ours: str) -> None:
    assert ours in (*EVENTS, "callback(metrics)")


@pytest.mark.parametrize("ours", rows_of("example"))
def test_examples(ours: str) -> None:
    assert (ROOT / ours).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("ours", rows_of("trainer"))
def test_keywords_of_the_trainer(ours: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = SMALL | eval(f"dict({ours})")
    PPOTrainer("CartPole-v1", preset=False, total_timesteps=128, out=tmp_path / "run", **given).train()
    printed = capsys.readouterr().out
    names = "mean_ep_len mean_ep_return mean_reward mean_clipped_ratio approx_kl rollout_len time_elapsed success_rate "
    names += "episodes_count timesteps_count rollouts_count total_timesteps clip_range"
    for name in names.split():
        assert f"{name}:" in printed
