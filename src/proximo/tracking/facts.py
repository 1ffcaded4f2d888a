"""What MLflow is told about a run and its model besides the numbers."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from typing import Any

import yaml

from proximo import settings
from proximo._version import __version__
from proximo.config import Config
from proximo.credentials import redacted
from proximo.metric_names import key_name
from proximo.presets import find_preset

MODEL_FILE = "policy.safetensors"


def about_run(config: Config) -> dict[str, str]:
    """Tags: versions, machine, commit, and whether the environment's preset was used as it is."""
    tags = {
        "mlflow.source.name": "proximo",
        "mlflow.source.type": "LOCAL",
        "env": config.env.id,
        "seed": str(config.seed),
        "version.proximo": __version__,
        "version.jax": importlib.metadata.version("jax"),
        "version.python": platform.python_version(),
        "machine": f"{platform.node()} ({platform.system()}, {platform.machine()})",
        "cpus": str(os.cpu_count()),
    }
    with contextlib.suppress(OSError, KeyError):  # a user without a name, as in some containers
        tags["mlflow.user"] = getpass.getuser()
    commit = git_commit()
    if commit:
        tags["mlflow.source.git.commit"] = commit
    tuned = find_preset(config.env.id)
    if tuned:
        used = settings.from_mapping(settings.to_mapping(config), "config")
        tags["preset"] = "yes" if all(used[path] == value for path, value in tuned.items()) else "no"
    return tags


def git_commit() -> str | None:
    """The commit of the working tree that the command was given in, if it was in one."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def about_model(run_id: str, model_id: str) -> dict[str, str]:
    """The files beside a policy's that make a folder an MLflow model; `proximo.pyfunc` loads it."""
    described = {
        "flavors": {
            "python_function": {
                "loader_module": "proximo.pyfunc",
                "data": MODEL_FILE,
                "python_version": platform.python_version(),
                "env": {"virtualenv": "python_env.yaml"},
            }
        },
        "mlflow_version": importlib.metadata.version("mlflow-skinny"),
        "model_id": model_id,
        "model_uuid": model_id,
        "run_id": run_id,
        "utc_time_created": time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime()),
    }
    surroundings = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    return {
        "MLmodel": yaml.safe_dump(described, sort_keys=False),
        "python_env.yaml": yaml.safe_dump(surroundings, sort_keys=False),
        "requirements.txt": f"proximo=={__version__}\n",
    }


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values by their dotted names, as texts. Passwords in addresses are left out."""
    named: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            named |= flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            named[key_name(f"{prefix}{name}")] = redacted(text)
    return named


def safe_name(name: str) -> str:
    """`name` as folders take it, and MLflow's models, whose names have no dot, slash, colon, quotation mark or %."""
    return re.sub(r"[^\w-]+", "-", name).strip("-") or "environment"
