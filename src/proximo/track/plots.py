"""Pictures of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

from proximo.files import write_atomically


def plot_learning_curve(path: Path) -> None:
    """`plots/learning_curve.png` of the run in `path`: returns of each rollout, their recent average, evaluations."""
    # Imported here: it takes as long as everything else together, and the figure needs no window.
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    if not any(row["recent/return_mean"] is not None for row in rows):
        return
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    rollouts = [(row["step"], row["rollout/return_mean"]) for row in rows if row["rollout/return_mean"] is not None]
    recent = [(row["step"], row["recent/return_mean"]) for row in rows if row["recent/return_mean"] is not None]
    played = [(row["step"], row["eval/return_mean"]) for row in rows if "eval/return_mean" in row]
    if result["final_eval"]:
        played.append((result["total_steps"], result["final_eval"]["return_mean"]))
    axes.plot(*zip(*rollouts, strict=True), ".", color="#9db4c8", markersize=4, label="episodes of one rollout, mean")
    axes.plot(*zip(*recent, strict=True), color="#1f5f99", linewidth=2, label="recent episodes, mean")
    if played:
        axes.plot(
            *zip(*played, strict=True), "D", color="#d1603d", markersize=6, label="deterministic evaluation, mean"
        )
    axes.set_title(f"{result['env']}, seed {result['seed']}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of an episode")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path / "plots" / "learning_curve.png", picture.getvalue())
