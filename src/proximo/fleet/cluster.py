"""A Ray cluster: which one, what each run gets of it, and how it is joined. Ray is loaded when it is asked for."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proximo.errors import UserError
from proximo.fleet.cores import available_cores
from proximo.processes import SIGNALS
from proximo.yaml_file import read_yaml

AUTO = "auto"
INSTALL = "pip install 'proximo[cluster]'"
CONNECT_SECONDS = 10.0
CLIENT_PORT = 10001
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray reports nothing to its makers, and does not print what happens to its processes."""


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and what each run gets of it."""

    address: str
    """`auto`: the one of this machine, which is started if there is none; `HOST:PORT`; or `ray://HOST:PORT`."""
    cpus_per_run: int = 1
    gpus_per_run: float = 0.0
    runtime_env: Path | None = None
    """A YAML file with Ray's `runtime_env`: how packages and files get to the nodes."""
    shared: bool = False
    """Whether the nodes see the folders of this machine under the same names."""

    def __post_init__(self) -> None:
        if self.cpus_per_run < 1:
            raise UserError(f"A run needs at least one CPU, not {self.cpus_per_run}.")
        if self.gpus_per_run < 0 or (self.gpus_per_run > 1 and self.gpus_per_run % 1):
            raise UserError(f"A run can have a part of one GPU or several whole ones, not {self.gpus_per_run:g}.")

    @property
    def needs(self) -> dict[str, float]:
        """What Ray is to keep for a run."""
        return {"CPU": float(self.cpus_per_run)} | ({"GPU": self.gpus_per_run} if self.gpus_per_run else {})


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, joined to the cluster; what this starts is gone afterwards."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"A cluster needs the package ray, which is not installed: {INSTALL}")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    runtime_env = read_runtime_env(cluster.runtime_env)
    if ray.is_initialized():  # by the user's own program
        if runtime_env:
            raise UserError("Ray was started by this program already; give the runtime_env to its ray.init instead.")
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", AUTO) if cluster.address == AUTO else cluster.address
    check_reachable(address)
    options = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": runtime_env}
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        _join(ray, address, options)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray has one of its own for SIGTERM
                signal.signal(number, handler)
        yield ray
    finally:
        ray.shutdown()


def _join(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    try:
        if address != AUTO:
            ray.init(address=address, **options)
            return
        with contextlib.suppress(ConnectionError):
            ray.init(address=AUTO, **options)
            return
        ray.init(address="local", num_cpus=len(available_cores()), include_dashboard=False, **options)
    except Exception as error:  # Ray raises all kinds
        raise UserError(f"Cannot join the Ray cluster {address}: {in_words(error)}") from None


def read_runtime_env(path: Path | None) -> dict[str, Any]:
    """Ray's `runtime_env`, as a file of the user's has it."""
    given = {} if path is None else read_yaml(path)
    if not isinstance(given, dict):
        raise UserError(f"{path} must hold the fields of Ray's runtime_env, such as pip and working_dir.")
    return given


def check_reachable(address: str) -> None:
    """Ray itself would try for a long time."""
    if address in (AUTO, "local"):
        return
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        port = place.port or (CLIENT_PORT if place.scheme == "ray" else None)
    except ValueError:
        place, port = urlsplit(""), None
    if not place.hostname or port is None or place.scheme not in ("", "ray"):
        raise UserError(f"{address} is not the address of a Ray cluster; give auto, HOST:PORT or ray://HOST:PORT.")
    if place.scheme == "ray" and importlib.util.find_spec("grpc") is None:
        raise UserError(f"{address} needs the package grpcio, which is not installed: {INSTALL}")
    try:
        socket.create_connection((place.hostname, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"The Ray cluster {address} cannot be reached: {error.strerror or error}.") from None


def room_on(node: Mapping[str, Any], cluster: Cluster) -> int:
    """How many runs a node has room for."""
    if not node["Alive"]:
        return 0
    return min(int(node["Resources"].get(name, 0.0) // amount) for name, amount in cluster.needs.items())


def check_room(nodes: list[Mapping[str, Any]], cluster: Cluster) -> None:
    """Refuse a cluster on which a run would wait for ever."""
    if any(room_on(node, cluster) for node in nodes):
        return
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    largest = [f"{max((node.get(name, 0.0) for node in alive), default=0.0):g} {name}s" for name in cluster.needs]
    wanted = [f"{amount:g} {name}{'s' if amount > 1 else ''}" for name, amount in cluster.needs.items()]
    raise UserError(
        f"No node of the cluster has {' and '.join(wanted)} for a run: the most that one has are "
        f"{' and '.join(largest)}. Add a node, or lower --cpus-per-run or --gpus-per-run."
    )


def in_words(error: BaseException) -> str:
    """The line of Ray's message that says what happened: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if any("Traceback" in line or "Error" in line for line in lines[1:]) else lines[0]
