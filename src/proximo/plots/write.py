"""Draw the pictures of a run, into `plots/` of its directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proximo.config import Config
from proximo.plots.pictures import PICTURES, RunData
from proximo.plots.team_pictures import TEAM_PICTURES
from proximo.run_dir.files import open_inside, read_lines, to_json, write_atomically

MAX_ROWS = 3_000
MAX_EVALUATIONS = 300
"""What is drawn of longer runs is evenly spaced: a picture has no room for more."""


def draw_pictures(path: Path, config: Config, result: dict[str, Any], trace: dict[str, Any] | None) -> list[str]:
    """Draw everything there is to show of the run in `path`, and write `plots/trace.json`; a sentence for each picture
    that could not be drawn. Pictures of an earlier end that have no successor are removed."""
    run = RunData(read_rows(path / "metrics.jsonl"), config, result, trace)
    folder, trouble = path / "plots", list[str]()
    if trace is None:
        (folder / "trace.json").unlink(missing_ok=True)
    else:
        write_atomically(folder / "trace.json", to_json(trace) + "\n")
    for name, draw in (PICTURES | TEAM_PICTURES).items():
        file = folder / f"{name}.png"
        try:
            from proximo.plots.drawing import png

            figure = draw(run)
            if figure is None:
                file.unlink(missing_ok=True)
            else:
                write_atomically(file, png(figure))
        except Exception as error:  # a picture is never worth a run
            trouble.append(f"plots/{file.name} could not be drawn: {type(error).__name__}: {error}.")
            if isinstance(error, ImportError):
                break
    return trouble


def read_rows(file: Path, most: int = MAX_ROWS, most_evaluations: int = MAX_EVALUATIONS) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`: all, or of more than `most` evenly spaced ones, and so of those with an
    evaluation. Only these are parsed: that is what takes time."""
    count, evaluated = 0, []
    with open_inside(file) as lines:
        for line in read_lines(lines):
            if b'"eval/episodes"' in line:
                evaluated.append(count)
            count += line.endswith(b"\n")
    wanted = {*thinned(range(count), most), *thinned(evaluated, most_evaluations)}
    with open_inside(file) as lines:
        return [json.loads(line) for number, line in enumerate(read_lines(lines)) if number in wanted]


def thinned(items: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i)] for i in np.linspace(0, len(items) - 1, most)]
