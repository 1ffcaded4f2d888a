"""An experiment's tables: what is planned, and how its trials compare."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from proximo.display.console import number
from proximo.display.printing import safe
from proximo.display.tables import plain
from proximo.experiment.plan import Plan, PlannedRun


def plan_table(plan: Plan) -> Table:
    """The trials of an experiment, and what they change."""
    table = Table(box=None, pad_edge=False)
    for title in ("trial", "environment", "changes"):
        table.add_column(title, overflow="fold")
    for title in ("steps", "seeds"):
        table.add_column(title, justify="right")
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.trial, run.config.env.id), []).append(run)
    for (trial, env), runs in groups.items():
        changes = ", ".join(f"{path}={plain(value)}" for path, value in runs[0].overrides.items()) or "-"
        seeds = ", ".join(str(run.config.seed) for run in runs)
        steps = f"{runs[0].config.train.total_timesteps:,}"
        table.add_row(safe(trial), safe(env), safe(changes), steps, seeds)
    return table


def comparison_table(summary: dict[str, Any]) -> Table:
    """The scores of trials: interquartile means with their intervals."""
    table = Table(box=None, pad_edge=False)
    for title in ("trial", "environment"):
        table.add_column(title, overflow="fold")
    for title in ("runs", "score (IQM)", "95 % interval"):
        table.add_column(title, justify="right")
    for trial in summary["trials"]:
        rows = [*trial["scores"].items(), *([("all, on one scale", trial["overall"])] if trial["overall"] else [])]
        for env, score in rows or [("-", {"iqm": None, "low": None})]:
            counted = f"{score.get('n', trial['counted'])}"
            spread = "-" if score["low"] is None else f"{number(score['low'])} to {number(score['high'])}"
            table.add_row(safe(trial["name"]), safe(env), counted, number(score["iqm"]), spread)
    return table
