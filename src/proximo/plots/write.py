"""Draw the pictures of a run, into `plots/` of its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proximo.config import Config
from proximo.plots.pictures import PICTURES, RunData
from proximo.plots.team_pictures import TEAM_PICTURES
from proximo.run_dir.files import to_json, write_atomically
from proximo.run_dir.read import read_rows


def draw_pictures(path: Path, config: Config, result: dict[str, Any], trace: dict[str, Any] | None) -> list[str]:
    """Draw everything there is to show of the run in `path`, and write `plots/trace.json`; a sentence for each picture
    that could not be drawn. Pictures of an earlier end that have no successor are removed."""
    run = RunData(read_rows(path), config, result, trace)
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
