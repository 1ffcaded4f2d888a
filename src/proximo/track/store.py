"""The run directory: `config.yaml`, `metrics.jsonl`, `result.json`, `models/`, `plots/`."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any

from proximo import settings
from proximo._version import __version__
from proximo.config import Config
from proximo.errors import UserError
from proximo.files import to_json, write_atomically

RUNS = Path("runs")


def default_directory(config: Config) -> Path:
    """A new name under `runs/`: environment, seed, time."""
    name = config.env.id.replace("/", "-").replace(":", "-")
    stem = f"{name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = RUNS / stem, 1
    while path.exists():
        count += 1
        path = RUNS / f"{stem}-{count}"
    return path


def versions() -> dict[str, str]:
    """Of everything that a run's numbers depend on."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "gymnax")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"proximo": __version__, "python": platform.python_version(), **found}


class RunStore:
    """Writes one run. `metrics.jsonl` has one object per update, in order."""

    def __init__(self, path: Path, config: Config):
        self.path = path
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} already holds something; give --out a new or empty folder.")
        try:
            (path / "models").mkdir(parents=True, exist_ok=True)
            write_atomically(path / "config.yaml", settings.to_yaml(config))
            self._metrics = (path / "metrics.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write the run to {path}: {error.strerror}.") from None

    def append(self, records: list[dict[str, Any]]) -> None:
        """Add the rows of finished updates; on disk when this returns."""
        self._metrics.writelines(to_json(record) + "\n" for record in records)
        self._metrics.flush()

    def finish(self, result: dict[str, Any]) -> None:
        self._metrics.close()
        write_atomically(self.path / "result.json", to_json(result, indent=2) + "\n")

    def close(self) -> None:
        self._metrics.close()
