"""The figures of the presets in README: train each with five seeds, and write the table.

    python tools/figures.py                     # all of them; runs that are there already are not repeated
    python tools/figures.py CartPole-v1 ...     # these; the others keep the figures they have

The runs stay in `runs/figures/`: the same command goes on after Ctrl-C, and measures anew what is removed there, which
is what to do when the code has changed. Figures go to `docs/figures.json`, and from there into README.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ["PROXIMO_MLFLOW"] = "0"

from proximo import settings
from proximo.errors import ProximoError, UserError
from proximo.experiment.plan import Plan, file_name, make_plan, make_trials
from proximo.experiment.progress import Progress, ProgressDisplay
from proximo.experiment.runner import carry_out
from proximo.run_dir.files import to_json, write_atomically
from proximo.run_dir.read import COMPLETE, read_result

ROOT = Path(__file__).parent.parent
FIGURES, README, RUNS = ROOT / "docs" / "figures.json", ROOT / "README.md", ROOT / "runs" / "figures"
START, END = "<!-- written by tools/figures.py -->", "<!-- end -->"
SEEDS = 5
PRESETS: dict[str, float | None] = {
    "CartPole-v1": 475,
    "LunarLander-v3": 200,
    "gymnax/CartPole-v1": 475,
    "gymnax/Breakout-MinAtar": 8,
    "brax/inverted_pendulum": 950,
    "jumanji/Snake-v1": None,
    "jumanji/Maze-v0": None,
    "jaxmarl/MPE_simple_spread_v3": None,
    "pettingzoo/mpe2.simple_spread_v3": None,
}
"""What is trained, and the return to reach; without one, all steps of the preset are trained."""
Figure = dict[str, Any]


def measure(
    env: str, goal: float | None, runs: Path, progress: Progress | None = None, num_seeds: int = SEEDS, **keywords: Any
) -> Figure:
    """Train a preset on an environment, or go on with that; what came of each seed."""
    flags = settings.from_keywords({"target_reward": goal, **keywords})
    plan, out = make_plan([env], make_trials(None, None, num_seeds), {}, flags), runs / file_name(env)
    if not out.exists():
        plan.save(out)
    elif Plan.load(out) != plan:
        raise UserError(f"{out} holds runs with other settings than the preset has now; remove it to measure anew.")
    carry_out(plan, out, progress=progress)
    results = [read_result(out / run.folder) or {} for run in plan.runs]
    if any(result.get("stop_reason") not in COMPLETE for result in results):
        raise UserError(f"Not every run in {out} came to its end; the same command goes on there.")
    names = {"seed": "seed", "total_steps": "steps", "converged": "reached", "final_return": "return"}
    return {"goal": goal, "runs": [{ours: result[name] for name, ours in names.items()} for result in results]}


def table(figures: dict[str, Figure]) -> str:
    """The figures as README shows them, in the order of PRESETS."""
    lines = ["| Preset | goal | steps to reach it: median (least to most) | seeds |", "|---|---|---|---|"]
    for env in PRESETS:
        if env in figures:
            goal, runs = figures[env]["goal"], figures[env]["runs"]
            shown = "-" if goal is None else f"{goal:g}"
            lines.append(f"| `{env}` | {shown} | {_outcome(goal, runs)} | {_count(goal, runs)} |")
    return "\n".join(lines)


def _outcome(goal: float | None, runs: list[Figure]) -> str:
    if goal is None:
        steps = max(run["steps"] for run in runs)
        return f"return {_spread([run['return'] for run in runs], '.3g')} after {steps:,} steps"
    steps = [run["steps"] for run in runs if run["reached"]]
    return _spread(steps, ",.0f") if steps else "not reached"


def _count(goal: float | None, runs: list[Figure]) -> str:
    reached = sum(run["reached"] for run in runs)
    return str(len(runs)) if goal is None or reached == len(runs) else f"{reached} of {len(runs)}"


def _spread(values: list[float], form: str) -> str:
    middle, least, most = (format(of(values), form) for of in (statistics.median, min, max))
    return f"{middle} ({least} to {most})"


def with_table(page: str, text: str, start: str = START) -> str:
    """A page with the table between its marks replaced by `text`."""
    marked = re.compile(f"{re.escape(start)}.*?{re.escape(END)}", re.DOTALL)
    if len(marked.findall(page)) != 1:
        raise UserError(f"The page must have one part between {start} and {END}.")
    return marked.sub(lambda _: f"{start}\n{text}\n{END}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="*", help=f"of {', '.join(PRESETS)}; all by default")
    chosen = parser.parse_args().env or list(PRESETS)
    if unknown := set(chosen) - PRESETS.keys():
        raise UserError(f"There are no figures of {', '.join(sorted(unknown))}; there are of {', '.join(PRESETS)}.")
    for env in chosen:
        figure = measure(env, PRESETS[env], RUNS, ProgressDisplay())
        known = json.loads(FIGURES.read_text(encoding="utf-8")) | {env: figure}
        figures = {name: known[name] for name in PRESETS if name in known}
        write_atomically(FIGURES, to_json(figures, indent=1) + "\n")
        write_atomically(README, with_table(README.read_text(encoding="utf-8"), table(figures)))


if __name__ == "__main__":
    try:
        main()
    except ProximoError as error:
        sys.exit(f"Error: {error}")
