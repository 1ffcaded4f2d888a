"""A real Ray cluster of two nodes with one CPU each: the same results as without it, whatever dies on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import pytest
from typer.testing import CliRunner

import probes
from proximo import run_multiple_experiments, settings
from proximo.cli.common import app
from proximo.errors import UserError
from proximo.experiment.plan import Plan, PlannedRun
from proximo.experiment.progress import Progress
from proximo.experiment.runner import carry_out
from proximo.fleet import ray_fleet
from proximo.fleet.cluster import (
    QUIET,
    Cluster,
    check_reachable,
    check_room,
    connected,
    in_words,
    read_runtime_env,
    room_on,
)
from proximo.fleet.jobs import Advanced, Ended, HandedIn, Job
from proximo.fleet.ray_fleet import RayFleet
from proximo.run_dir.read import is_running, read_status
from proximo.train.interrupt import Interrupt

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # Ray starts its processes so

JAX, SCRIPT = "gymnax/CartPole-v1", "OnlyInThisScript-v0"
SHORT: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 16,
    "minibatch_size": 32,
    "epochs_per_update": 2,
    "hidden_sizes": [16],
    "total_timesteps": 64 * 12,
    "eval_frequency": 5,
    "eval_episodes": 3,
    "target_reward": None,
    "mlflow": False,
}
LONG = SHORT | {"total_timesteps": 64 * 1500, "eval_frequency": 500, "every_steps": 64 * 50}
"""Some seconds, with a checkpoint every few moments."""
MARK = "PROXIMO_TEST_CLUSTER"
COMMAND = [sys.executable, "-c", "from proximo.cli import main; main()", "experiment"]


class Nodes(NamedTuple):
    address: str
    cluster: Any


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Deaths are noticed within two seconds, and not within twenty."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        for name, value in (QUIET | {MARK: mark}).items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster as RayNodes

        watch = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 0}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": watch}
        cluster = RayNodes(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield Nodes(cluster.address, cluster)
        cluster.shutdown()
    until = time.monotonic() + 30
    while (left := started(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left, left


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_fleet, "NEWS_SECONDS", 0.2)


def started(mark: str) -> list[str]:
    """Processes that this module has started, and that are still there."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int(place.name) != os.getpid() and f"{MARK}={mark}".encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def plain(out: Path) -> dict[str, Any]:
    summary = json.loads((out / "summary.json").read_text())
    return {name: part for name, part in summary.items() if name != "timing"}


def assert_the_same(one: Path, other: Path) -> None:
    """Summaries but for the time, policies, and rows but for the time."""
    assert plain(one) == plain(other)
    for run in Plan.load(one).runs:
        for name in ("models/final_actor.safetensors", "models/best_return_pi_ckpt.safetensors", "config.yaml"):
            assert (one / run.folder / name).read_bytes() == (other / run.folder / name).read_bytes()
        assert rows(one / run.folder) == rows(other / run.folder)


def rows(path: Path) -> list[dict[str, Any]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if "time" not in name} for line in lines]


class Heard(Progress):
    """What an experiment says; `once` is called when a run has sent rows for the first time."""

    def __init__(self, once: Callable[[PlannedRun], None] = lambda run: None) -> None:
        self.notes: list[str] = []
        self.ends: list[tuple[str, str]] = []
        self._once: Callable[[PlannedRun], None] | None = once

    def advanced(self, run: PlannedRun, row: dict[str, Any]) -> None:
        if (once := self._once) is not None and row["step"] > 64 * 150:
            self._once = None
            once(run)

    def noted(self, run: PlannedRun, sentence: str) -> None:
        self.notes.append(sentence)

    def ended(self, run: PlannedRun, how: Ended) -> None:
        self.ends.append((how.end, how.sentence))


@pytest.mark.slow
def test_six_runs_on_a_cluster_are_those_without_it(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a JAX environment, and on one that only this process has registered."""
    spec = gymnasium.envs.registration.EnvSpec(SCRIPT, lambda **_: gymnasium.make("CartPole-v1"))
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    here, there, heard = tmp_path / "here" / "e", tmp_path / "there" / "e", Heard()
    run_multiple_experiments([JAX, SCRIPT], seeds=3, out=here, preset=False, **SHORT)
    run_multiple_experiments(
        [JAX, SCRIPT], seeds=3, out=there, preset=False, cluster=nodes.address, progress=heard, **SHORT
    )
    assert heard.ends == [("complete", "")] * 6
    assert_the_same(here, there)
    left = [file.relative_to(there) for file in there.rglob("*") if file.name.startswith(".")]
    assert not left


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that nothing happened to."""
    out = tmp_path_factory.mktemp("long") / "e"
    run_multiple_experiments(JAX, seeds=2, out=out, preset=False, **LONG)
    return out


@pytest.mark.slow
def test_a_node_that_dies_changes_nothing(nodes: Nodes, long_runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "e"

    def kill_a_node(run: PlannedRun) -> None:
        assert is_running(out / run.folder)  # nobody else may train it meanwhile
        nodes.cluster.remove_node(nodes.cluster.worker_nodes.copy().pop(), allow_graceful=False)

    heard = Heard(kill_a_node)
    try:
        run_multiple_experiments(JAX, seeds=2, out=out, preset=False, cluster=nodes.address, progress=heard, **LONG)
    finally:
        while len(nodes.cluster.worker_nodes) < 2:
            nodes.cluster.add_node(num_cpus=1)
    assert heard.ends == [("complete", "")] * 2
    assert any("was lost, and the run goes on elsewhere" in note for note in heard.notes)
    assert_the_same(long_runs, out)


@pytest.mark.slow
def test_a_driver_that_is_killed_is_resumed(nodes: Nodes, long_runs: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "e", LONG["total_timesteps"]
    words = [
        *(JAX, "--trials", 2, "--steps", steps, "--out", out, "--no-preset", "--no-mlflow", "--cluster", nodes.address),
        *(word for pair in as_assignments(LONG) for word in ("--set", pair)),
    ]
    driver = subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while sum(file.read_bytes().count(b"\n") for file in out.glob("runs/*/metrics.jsonl")) < 200:
        assert driver.stdout is not None
        assert driver.poll() is None, driver.stdout.read().decode()
        time.sleep(0.05)
    driver.kill()
    driver.communicate()
    heard = Heard()
    carry_out(Plan.load(out), out, progress=heard, trust=True, cluster=Cluster(nodes.address))
    assert {end for end, _ in heard.ends} == {"complete"}
    assert_the_same(long_runs, out)


def as_assignments(keywords: dict[str, Any]) -> list[str]:
    values = settings.from_keywords({name: value for name, value in keywords.items() if name != "mlflow"})
    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


@pytest.mark.faults
def test_a_run_on_the_cluster_that_is_cancelled_is_saved(nodes: Nodes, tmp_path: Path) -> None:
    config = settings.build({"env.id": JAX}, settings.from_keywords(LONG | {"total_timesteps": 10**9}))
    one, other = (Job(config, tmp_path / name) for name in ("one", "other"))
    ends: dict[Job, str] = {}
    with Interrupt() as interrupt, RayFleet(Cluster(nodes.address), 1, tmp_path, interrupt, HandedIn()) as fleet:
        fleet.submit(one)
        fleet.submit(other)
        for event in fleet.events():
            if isinstance(event, Advanced) and event.job is one:
                fleet.cancel(one)
            elif isinstance(event, Advanced):
                interrupt.end(signal.SIGTERM)
            elif isinstance(event, Ended):
                ends[event.job] = event.end
    assert ends == {one: "interrupted", other: "interrupted"}
    assert read_status(one.folder).state == read_status(other.folder).state == "interrupted"


@pytest.mark.faults
def test_a_shared_file_system_is_used_where_there_is_one(nodes: Nodes, long_runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "e"
    where = Cluster(nodes.address, shared=True)
    run_multiple_experiments(JAX, seeds=2, out=out, preset=False, cluster=where, **LONG)
    assert_the_same(long_runs, out)
    assert not list(out.glob(".shared-*"))


@pytest.mark.faults
def test_an_environment_that_was_handed_in_reaches_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    summary = run_multiple_experiments(
        probes.OneStep(), seeds=2, out=tmp_path / "e", preset=False, cluster=nodes.address, **SHORT
    )
    assert [run["score"] for run in summary["runs"]] == [1.0, 1.0]


@pytest.mark.faults
def test_what_fails_on_a_node_is_told_with_the_folder_here(nodes: Nodes, tmp_path: Path) -> None:
    heard = Heard()
    run_multiple_experiments(
        breaks, seeds=1, out=tmp_path / "e", preset=False, cluster=nodes.address, progress=heard, **SHORT
    )
    ((end, sentence),) = heard.ends
    assert end == "failed"
    assert "out of order" in sentence
    assert "proximo-" not in sentence  # where it was on the node
    (run,) = (tmp_path / "e" / "runs").iterdir()
    assert "out of order" in (run / "error.txt").read_text()


def breaks() -> gymnasium.Env[Any, Any]:
    class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise ValueError("out of order")

    return Breaks(gymnasium.make("CartPole-v1"))


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_driver_saves_the_runs(nodes: Nodes, tmp_path: Path, number: int) -> None:
    out = tmp_path / "e"
    words = [
        JAX,
        "--trials",
        2,
        "--steps",
        10**8,
        "--out",
        out,
        "--no-preset",
        "--no-mlflow",
        "--cluster",
        nodes.address,
    ]
    driver = subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert driver.stdout is not None
    while len([file for file in out.glob("runs/*/metrics.jsonl") if file.stat().st_size]) < 2:
        assert driver.poll() is None, driver.stdout.read().decode()
        time.sleep(0.05)
    driver.send_signal(number)
    said = driver.communicate(timeout=60)[0].decode()
    assert driver.returncode == 128 + number, said
    assert "Interrupted" in said
    assert [read_status(run).state for run in (out / "runs").iterdir()] == ["interrupted"] * 2


# What is refused


def test_a_cluster_that_cannot_be_reached_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"The Ray cluster 127\.0\.0\.1:1 cannot be reached: Connection refused\."):
        check_reachable("127.0.0.1:1")
    for address in ("http://x:1", "somewhere", "x:y", ""):
        with pytest.raises(UserError, match=r"is not the address of a Ray cluster; give auto, HOST:PORT"):
            check_reachable(address)
    check_reachable("auto")


NODES = [
    {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
    {"Alive": True, "Resources": {"memory": 1.0}},
    {"Alive": False, "Resources": {"CPU": 64.0}},
]


def test_the_room_on_nodes_is_counted_and_too_little_is_refused() -> None:
    assert [room_on(node, Cluster("auto")) for node in NODES] == [4, 0, 0]
    assert room_on(NODES[0], Cluster("auto", cpus_per_run=3)) == 1
    assert room_on(NODES[0], Cluster("auto", gpus_per_run=0.5)) == 4
    assert room_on(NODES[0], Cluster("auto", gpus_per_run=2)) == 1
    check_room(NODES, Cluster("auto", cpus_per_run=4))
    words = "No node of the cluster has 8 CPUs for a run: the most that one has are 4 CPUs."
    with pytest.raises(UserError, match=words):
        check_room(NODES, Cluster("auto", cpus_per_run=8))
    with pytest.raises(UserError, match="has 1 CPU and 3 GPUs for a run: the most that one has are 4 CPUs and 2 GPUs"):
        check_room(NODES, Cluster("auto", gpus_per_run=3))


def test_parts_of_several_gpus_and_no_cpu_are_refused() -> None:
    with pytest.raises(UserError, match=r"a part of one GPU or several whole ones, not 1\.5"):
        Cluster("auto", gpus_per_run=1.5)
    with pytest.raises(UserError, match="at least one CPU, not 0"):
        Cluster("auto", cpus_per_run=0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'proximo\[cluster\]'"), connected(Cluster("auto")):
        pass


def test_a_runtime_env_is_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text("pip: [minigrid]\n")
    assert read_runtime_env(file) == {"pip": ["minigrid"]}
    assert read_runtime_env(None) == {}
    file.write_text("[minigrid]\n")
    with pytest.raises(UserError, match="must hold the fields of Ray's runtime_env"):
        read_runtime_env(file)


def test_what_ray_says_is_brought_to_a_line() -> None:
    assert in_words(ConnectionError("Nobody is there.\nTry again.")) == "Nobody is there."
    traceback = (
        "The actor died.\n\nTraceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'y'\n"
    )
    assert in_words(RuntimeError(traceback)) == "ModuleNotFoundError: No module named 'y'"
    assert in_words(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--cpus-per-run", "2"], "--cpus-per-run is for runs on a cluster"),
        (["--gpus-per-run", "1"], "--gpus-per-run is for runs on a cluster"),
        (["--runtime-env", "x.yaml"], "--runtime-env is for runs on a cluster"),
        (["--shared"], "--shared is for runs on a cluster"),
        (["--cluster", "auto", "--dry-run"], "--dry-run measures how fast this machine is"),
    ],
)
def test_options_about_a_cluster_need_one(words: list[str], answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        CliRunner().invoke(app, ["experiment", JAX, *words], catch_exceptions=False)
