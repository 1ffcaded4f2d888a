"""The figures in README are those that the command wrote."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from proximo.errors import UserError
from proximo.presets import find_preset

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("figures", ROOT / "tools" / "figures.py")
assert spec is not None
assert spec.loader is not None
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)


def run(steps: int, reached: bool = True, returned: float = 0.0, seed: int = 0) -> dict[str, Any]:
    return {"seed": seed, "steps": steps, "reached": reached, "return": returned}


KNOWN = {
    "jumanji/Snake-v1": {"goal": None, "runs": [run(400_000, False, value) for value in (15.64, 14.0, 16.28)]},
    "LunarLander-v3": {"goal": 200, "runs": [run(92_160), run(300_032, False), run(98_304), run(94_208)]},
    "gymnax/Breakout-MinAtar": {"goal": 8, "runs": [run(300_000, False)]},
    "CartPole-v1": {"goal": 475, "runs": [run(72_192), run(106_496), run(68_608)]},
}


def test_readme_shows_what_was_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    held = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
    assert figures.with_table(readme, figures.table(held)) == readme, "run `python tools/figures.py`"
    assert "CartPole-v1" in held
    for env, figure in held.items():
        assert figure["goal"] == figures.PRESETS[env]
        assert len(figure["runs"]) == figures.SEEDS


def test_every_figure_is_of_a_preset() -> None:
    assert all(find_preset(env) for env in figures.PRESETS)


def test_the_table() -> None:
    assert figures.table(KNOWN).splitlines()[2:] == [
        "| `CartPole-v1` | 475 | 72,192 (68,608 to 106,496) | 3 |",
        "| `LunarLander-v3` | 200 | 94,208 (92,160 to 98,304) | 3 of 4 |",
        "| `gymnax/Breakout-MinAtar` | 8 | not reached | 0 of 1 |",
        "| `jumanji/Snake-v1` | - | return 15.6 (14 to 16.3) after 400,000 steps | 3 |",
    ]


def test_it_is_written_between_its_marks() -> None:
    text = f"before\n{figures.START}\nold\n\nold\n{figures.END}\nafter"
    assert figures.with_table(text, r"a \1 b") == f"before\n{figures.START}\na \\1 b\n{figures.END}\nafter"
    with pytest.raises(UserError, match="must have one part"):
        figures.with_table("nothing", "new")


@pytest.mark.slow
def test_runs_that_are_there_are_not_repeated(tmp_path: Path) -> None:
    given: dict[str, Any] = {"num_seeds": 2, "total_timesteps": 2048, "eval_episodes": 2}
    first = figures.measure("gymnax/CartPole-v1", 475, tmp_path, **given)
    assert first["goal"] == 475
    assert [(one["seed"], one["steps"], one["reached"]) for one in first["runs"]] == [
        (0, 2048, False),
        (100_000, 2048, False),
    ]
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")}
    assert len(files) == 2
    assert figures.measure("gymnax/CartPole-v1", 475, tmp_path, **given) == first
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")}
    with pytest.raises(UserError, match="remove it to measure anew"):
        figures.measure("gymnax/CartPole-v1", 475, tmp_path, **given | {"total_timesteps": 4096})
