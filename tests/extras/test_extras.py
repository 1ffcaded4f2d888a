"""Each package, by id from the command line and by a factory in Python, as a stranger would: in processes of their own.

`make test-extras` runs this in an environment of its own, and keeps the returns in `docs/packages.json`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from packages import PACKAGES, Package

pytestmark = pytest.mark.extras

HERE = Path(__file__).parent
KEPT = HERE.parent.parent / "docs" / "packages.json"
COMMAND = [sys.executable, "-m", "proximo"]
DRAWN = ["--set", "eval.actions=stochastic", "--set", "eval.episodes=20", "--set", "eval.frequency=0", "--no-preset"]


def run(command: list[str], folder: Path) -> str:
    """What a command prints; it draws no pictures of runs."""
    places = os.pathsep.join([str(HERE), str(HERE.parent / "started")])
    variables = os.environ | {"PROXIMO_MLFLOW": "0", "SDL_VIDEODRIVER": "dummy", "PYTHONPATH": places}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def keep(package: Package, found: dict[str, Any]) -> None:
    known = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    known[package.name] = found
    KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_it_is_trained_by_factory_and_by_id(package: Package, tmp_path: Path) -> None:
    """The return is the mean of 20 episodes with drawn actions: of the policy before its first update, and after."""
    if importlib.util.find_spec(package.module) is None:
        pytest.skip(f"{package.name} is not installed; `make test-extras` installs it")
    package.prepare(tmp_path)
    told = run([sys.executable, str(HERE / "by_factory.py"), package.name], tmp_path)
    factory = json.loads(told.splitlines()[-1])
    assert factory["steps"] == 6144
    started = time.monotonic()
    command = [*COMMAND, "train", package.env_id, *package.flags, "--steps", str(package.steps)]
    if package.max_steps_per_episode is not None:
        command += ["--set", f"env.max_steps_per_episode={package.max_steps_per_episode}"]
    run([*command, *DRAWN, "--out", "run", "--quiet"], tmp_path)
    seconds = time.monotonic() - started
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["total_steps"] >= package.steps
    before, after = factory["before"]["avg_reward"], result["final_eval"]["return_mean"]
    keep(
        package,
        {
            "version": importlib.metadata.version(package.name),
            "command": " ".join(f"'{word}'" if " " in word or "*" in word else word for word in command[3:]),
            "before": before,
            "after": after,
            "seconds": round(seconds),
        },
    )
    if package.learns:
        assert after > before
