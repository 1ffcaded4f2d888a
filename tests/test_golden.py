"""The tool that compares runs to the bit must see a difference, and only a difference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import golden  # noqa: E402


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    save_file({"kernel": np.arange(3.0), "bias": np.zeros(1)}, tmp_path / "models" / "final_actor.safetensors")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "time/elapsed": 1}\n{"step": 2, "loss": 0.25}\n')
    (tmp_path / "result.json").write_text(json.dumps({"final_eval": {"return_mean": 3.0}, "wall_seconds": 1}))
    return tmp_path


def test_times_and_names_of_arrays_are_no_difference(run: Path) -> None:
    before = golden.hashed(run)
    save_file({"b": np.zeros(1), "w": np.arange(3.0)}, run / "models" / "final_actor.safetensors")
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "time/elapsed": 9}\n{"step": 2, "loss": 0.25}\n')
    assert golden.hashed(run) == before


@pytest.mark.parametrize("part", ["metrics", "models", "final"])
def test_a_changed_number_is_found_and_named(run: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = golden.hashed(run)
    if part == "metrics":
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.250001}\n')
    elif part == "models":
        save_file({"kernel": np.arange(3.0), "bias": np.full(1, -0.0)}, run / "models" / "final_actor.safetensors")
    else:
        (run / "result.json").write_text(json.dumps({"final_eval": {"return_mean": 3.0000001}}))
    assert not golden.report("a", before, golden.hashed(run))
    assert f"a: {part} differ: " in capsys.readouterr().out


def test_new_metrics_are_listed_and_allowed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = golden.hashed(run)
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "kl": 1}\n{"step": 2, "loss": 0.25, "kl": 2}\n')
    assert golden.report("a", before, golden.hashed(run))
    assert capsys.readouterr().out == "a: metrics new: kl\n"


@pytest.mark.slow
def test_a_run_is_the_same_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "golden.py")]
    file = str(tmp_path / "hashes.json")
    for what in ("record", "compare"):
        done = subprocess.run([*command, what, file, "--only", "host"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "1 of 1 runs have the same bits" in done.stdout
