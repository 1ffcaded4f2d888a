"""The store of MLflow that needs no server: a database and a folder of files, beside the folders of the runs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from proximo.run_dir.files import cache_folder, umask

DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
SCHEME = "sqlite:///"


def uri(run: Path) -> str:
    """The address of the store that the run in `run` belongs to."""
    return store_uri(run.absolute().parent)


def store_uri(runs: Path) -> str:
    """The address of the store in the folder `runs`."""
    return f"{SCHEME}{runs.absolute() / DATABASE}"


def artifacts(uri: str, experiment: str) -> str | None:
    """The folder of an experiment's files, where the store at `uri` is such a one; others have their own."""
    database = _database(uri)
    return str(database.parent / ARTIFACTS / experiment) if database else None


def still_there(remembered: str | None) -> str | None:
    """The address that a run remembers, unless its database was moved away, perhaps together with the run."""
    if not isinstance(remembered, str):  # the file may be anybody's
        return None
    database = _database(remembered)
    return None if database and not database.is_file() else remembered


def create(uri: str, make: Callable[[str], object]) -> None:
    """Make the database at `uri` if there is none. `make` has MLflow do so, which takes seconds: the first one of this
    user, and of this version of MLflow, is kept empty in the cache, and copied."""
    database = _database(uri)
    if database is None or database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    version = importlib.metadata.version("mlflow-skinny")
    template = cache_folder() / f"mlflow-{version}.db"
    # Without a cache, or links, or with a damaged template, MLflow makes the database itself.
    with contextlib.suppress(OSError, sqlite3.Error):
        if not template.is_file():
            template.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=template.parent) as folder:
                make(f"{SCHEME}{folder}/{DATABASE}")
                os.replace(f"{folder}/{DATABASE}", template)
        handle, copy = tempfile.mkstemp(dir=database.parent, prefix=f".{DATABASE}.")
        os.close(handle)
        try:
            shutil.copyfile(template, copy)
            _move_default(copy, str(database.parent / ARTIFACTS / "0"))
            os.chmod(copy, 0o666 & ~umask())
            os.link(copy, database)  # never over one that another run has made meanwhile
        finally:
            os.unlink(copy)


def _move_default(database: str, folder: str) -> None:
    """Let MLflow's experiment "Default" keep its files in `folder`. MLflow gives it a folder under the one in which the
    template was made, which may be anywhere."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as opened:
        opened.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", [folder])
        opened.execute("VACUUM")  # nothing of the old one is left in the file


def _database(uri: str) -> Path | None:
    """The file of an embedded store's address; None for any other address."""
    path = Path(uri.removeprefix(SCHEME))
    return path if uri.startswith(SCHEME) and path.name == DATABASE else None
