"""Pictures of runs with many agents."""

from __future__ import annotations

import re
from typing import Any

from proximo.plots import drawing as d
from proximo.plots.pictures import Figure, RunData, any_number, over_steps


def agents(run: RunData) -> Figure | None:
    """The returns of each agent and of each group, and the score against earlier policies."""
    panels = [(kind, _named(run, kind)) for kind in ("agent", "group")]
    panels = [(kind, names) for kind, names in panels if names]
    won = run.column("selfplay/win_rate")
    against = any_number(won)
    if not panels:
        return None
    heights = [d.TALL if number == 0 else d.LOW * 1.3 for number in range(len(panels))] + [d.LOW * 1.3] * against
    figure, canvas = over_steps(run, "Many agents", heights)
    for axes, (kind, names) in zip(canvas, panels, strict=False):
        for name, colour in zip(names, d.palette(len(names)), strict=True):
            d.trend(axes, run.steps, run.column(f"recent/{kind}/{name}/return_mean"), colour, d.escaped(name))
        few = len(names) <= len(d.COLOURS)
        d.heading(axes, "Return of each agent" if kind == "agent" else "Mean return in each group", legend=few)
    if against:
        d.series(canvas[-1], run.steps, 100 * won, d.GREEN)
        canvas[-1].set_ylim(0, 100)
        d.reference(canvas[-1], 50.0, "even")
        d.heading(canvas[-1], "Wins against earlier policies (%; draws count half)")
    return figure


def _named(run: RunData, kind: str) -> list[str]:
    found = (re.fullmatch(rf"recent/{kind}/(.+)/return_mean", name) for name in (run.rows[-1] if run.rows else {}))
    return [match[1] for match in found if match]


TEAM_PICTURES: dict[str, Any] = {"agents": agents}
