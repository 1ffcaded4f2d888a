"""Experiments: every run is trained, once, with the bits it would have had alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import pytest
from typer.testing import CliRunner, Result

import probes
from proximo import PPOTrainer, run_multiple_experiments, run_single_experiment, settings
from proximo.cli.common import app
from proximo.errors import UserError
from proximo.experiment import runner as runner_module
from proximo.experiment.plan import Plan, PlannedRun, make_plan, make_trials
from proximo.experiment.progress import Progress, ProgressDisplay
from proximo.experiment.track import ExperimentFeeder
from proximo.fleet.jobs import Ended, Job
from proximo.run_dir.directory import RunDirectory
from proximo.run_dir.lock import take_lock
from proximo.run_dir.read import find_run

COMMAND = [sys.executable, "-c", "from proximo.cli import main; main()", "experiment"]
JAX, HOST = "gymnax/CartPole-v1", "CartPole-v1"
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
}
CLIP = {"careful": {"ppo.clip_epsilon": 0.1}, "bold": {"ppo.clip_epsilon": 0.4, "ppo.learning_rate": 1e-3}}


class Heard(Progress):
    """What an experiment says."""

    def __init__(self) -> None:
        self.ends: dict[str, Ended] = {}
        self.notes: list[str] = []
        self.jobs: int | None = None

    def start(self, plan: Plan, out: Path, missing: list[PlannedRun], jobs: int) -> None:
        self.jobs, self.missing = jobs, [run.folder for run in missing]

    def ended(self, run: PlannedRun, how: Ended) -> None:
        self.ends[run.folder] = how

    def note(self, sentence: str, key: Any = None) -> None:
        self.notes.append(sentence)

    warn = note


def plain(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in summary.items() if name != "timing"}


def policy(path: Path) -> bytes:
    return (path / "models" / "final_actor.safetensors").read_bytes()


def rows(path: Path) -> list[dict[str, Any]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if "time" not in name} for line in lines]


def assert_as_alone(out: Path, run: PlannedRun) -> None:
    """The run of an experiment has the bits of one that was trained by itself."""
    alone = out / "alone" / run.folder
    PPOTrainer(config=run.config, out=alone).train()
    assert policy(out / run.folder) == policy(alone)
    assert rows(out / run.folder) == rows(alone)


@pytest.mark.slow
def test_trials_and_seeds_on_a_compiled_environment_are_the_runs_alone(tmp_path: Path) -> None:
    heard = Heard()
    summary = run_multiple_experiments(
        JAX, CLIP, seeds=2, out=tmp_path / "e", preset=False, jobs=2, progress=heard, **SHORT
    )
    plan = Plan.load(tmp_path / "e")
    assert [(trial["name"], trial["runs"], trial["counted"]) for trial in summary["trials"]] == [
        ("careful", 2, 2),
        ("bold", 2, 2),
    ]
    assert heard.jobs == 2
    assert {how.end for how in heard.ends.values()} == {"complete"}
    for run in plan.runs:
        assert_as_alone(tmp_path / "e", run)
    files = {file.name for file in (tmp_path / "e").iterdir()}
    assert {"experiment.json", "summary.json", "summary.csv", "report.html", "plots", "runs"} <= files
    assert len({policy(tmp_path / "e" / run.folder) for run in plan.runs}) == 4


@pytest.mark.learning
def test_host_environments_are_the_runs_alone_and_have_processes_of_their_own(tmp_path: Path) -> None:
    run_multiple_experiments(HOST, seeds=[3, 1], out=tmp_path / "e", preset=False, jobs=2, **SHORT)
    for run in Plan.load(tmp_path / "e").runs:
        assert_as_alone(tmp_path / "e", run)
    assert (tmp_path / "e" / "workers.log").is_file()


def test_a_single_experiment_is_a_run(tmp_path: Path) -> None:
    config = settings.build({"env.id": JAX}, settings.from_keywords(SHORT))
    result = run_single_experiment(config, tmp_path / "run")
    assert result["stop_reason"] == "budget"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["updates"] == 12


def test_seeds_that_share_environments_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "train", lambda *_: None)
    heard = Heard()
    run_multiple_experiments(HOST, seeds=[0, 1], out=tmp_path / "e", preset=False, progress=heard, **SHORT)
    assert heard.notes[0].startswith("The seeds 0 and 1 have 3 of 4 environments in common on CartPole-v1")
    heard = Heard()
    run_multiple_experiments(HOST, seeds=2, out=tmp_path / "f", preset=False, progress=heard, **SHORT)
    assert heard.notes == []


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    out = tmp_path / "e"
    first = run_multiple_experiments(JAX, seeds=2, out=out, preset=False, **SHORT)
    files = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")}
    heard = Heard()
    again = runner_module.carry_out(Plan.load(out), out, progress=heard)
    assert heard.missing == []
    assert plain(again) == plain(first)
    assert files == {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")}


def test_a_run_that_failed_before_it_began_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a folder with nothing but what went wrong, which must not be in the way."""
    out, heard = tmp_path / "e", Heard()

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("not now")

    with monkeypatch.context() as patch:
        patch.setattr("proximo.fleet.single.PPOTrainer", fails)
        run_multiple_experiments(JAX, seeds=1, out=out, preset=False, progress=heard, **SHORT)
        with pytest.warns(UserWarning, match=r"seed0 failed: ValueError: not now"):
            summary = runner_module.carry_out(Plan.load(out), out)
    assert [run["state"] for run in summary["runs"]] == ["failed"]
    assert [how.end for how in heard.ends.values()] == ["failed"]
    (run,) = (out / "runs").iterdir()
    assert "ValueError: not now" in (run / "error.txt").read_text()
    summary = runner_module.carry_out(Plan.load(out), out)
    assert [run["state"] for run in summary["runs"]] == ["complete"]
    assert not (run / "error.txt").exists()


def test_an_environment_that_was_handed_in_is_not_replaced_by_one_of_its_name(tmp_path: Path) -> None:
    out = tmp_path / "e"
    run_multiple_experiments(probes.OneStep(), seeds=1, out=out, preset=False, **SHORT)
    with pytest.raises(UserError, match="was handed in as a Python object; hand it in again"):
        runner_module.carry_out(Plan.load(out), out)
    assert runner_module.carry_out(Plan.load(out), out, env=probes.OneStep())["runs"][0]["state"] == "complete"


@pytest.mark.slow
def test_an_environment_that_a_script_registered_is_known_to_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("OfAScript-v0", lambda **_: Breaks(tmp_path / "not there"))
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    summary = run_multiple_experiments(spec.id, seeds=1, out=tmp_path / "e", preset=False, **SHORT)
    assert [run["state"] for run in summary["runs"]] == ["complete"]


class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Breaks in the episodes that begin with certain seeds, as long as the file `broken` is there."""

    def __init__(self, broken: Path) -> None:
        super().__init__(gymnasium.make(HOST))
        self.broken = broken

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.bad = seed % 10_000 == 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self.bad and self.broken.exists():
            raise ValueError("out of order")
        return super().step(action)


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    broken, out, heard = tmp_path / "broken", tmp_path / "e", Heard()
    broken.touch()
    given = SHORT | {"num_envs": 1, "rollout_length": 64, "groups": 1}
    summary = run_multiple_experiments(
        lambda: Breaks(broken), seeds=[0, 1, 2], out=out, preset=False, jobs=1, progress=heard, **given
    )
    ends = {folder[-5:]: how for folder, how in heard.ends.items()}
    assert {name: how.end for name, how in ends.items()} == {
        "seed0": "complete",
        "seed1": "failed",
        "seed2": "complete",
    }
    assert "out of order" in ends["seed1"].sentence
    assert [run["state"] for run in summary["runs"]] == ["complete", "failed", "complete"]
    failed = next(path for path in (out / "runs").iterdir() if path.name.endswith("seed1"))
    assert "ValueError: out of order" in (failed / "error.txt").read_text()
    broken.unlink()
    heard = Heard()
    summary = runner_module.carry_out(Plan.load(out), out, progress=heard, env=lambda: Breaks(broken))
    assert [Path(folder).name for folder in heard.missing] == [failed.name]
    assert [run["state"] for run in summary["runs"]] == ["complete"] * 3


def test_an_environment_object_is_used_and_bad_ones_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    summary = run_multiple_experiments(probes.OneStep(), seeds=2, out=tmp_path / "e", preset=False, **SHORT)
    assert [run["score"] for run in summary["runs"]] == [1.0, 1.0]
    with pytest.raises(UserError, match="Nonsense-v0"):
        run_multiple_experiments([JAX, "Nonsense-v0"], seeds=1, out=tmp_path / "f", preset=False, **SHORT)
    assert not (tmp_path / "f" / "runs").exists()


def test_an_experiment_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "e"
    run_multiple_experiments(probes.OneStep(), seeds=1, out=out, preset=False, **SHORT)
    with (out / "experiment.json").open("rb") as file:
        assert take_lock(file)
        with pytest.raises(UserError, match="already running in another process"):
            runner_module.carry_out(Plan.load(out), out, env=probes.OneStep())


def test_a_run_that_another_process_still_holds_is_waited_for(tmp_path: Path) -> None:
    config = settings.build({"env.id": JAX}, settings.from_keywords(SHORT))
    store = RunDirectory(tmp_path / "run")
    timer = threading.Timer(1.0, store.close)
    timer.start()
    assert run_single_experiment(config, tmp_path / "run")["updates"] == 12


# The command line


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, ["experiment", *map(str, words)])


SMALL: dict[str, Any] = {
    "env": {"num_envs": 4},
    "ppo": {"rollout_length": 16, "minibatch_size": 32, "epochs_per_update": 2},
    "network": {"hidden_sizes": [16]},
    "eval": {"frequency": 5, "episodes": 3},
}
"""The settings of `SHORT`, by section: what is compiled for one test serves the others."""
PAIRS = [f"{section}.{name}={value}" for section, values in SMALL.items() for name, value in values.items()]
FLAGS = ["--no-preset", *(word for pair in PAIRS for word in ("--set", pair))]


def test_the_command_trains_seeds_and_shows_a_table(tmp_path: Path) -> None:
    done = invoke(JAX, "--trials", 2, "--steps", 64 * 12, "--seed", 5, "--out", tmp_path / "e", *FLAGS)
    assert done.exit_code == 0, done.output
    assert "2 runs, 2 at a time" in done.output or len(os.sched_getaffinity(0)) == 1
    assert "95 % interval" in done.output
    assert [run.config.seed for run in Plan.load(tmp_path / "e").runs] == [5, 100_005]
    assert invoke(JAX, "--trials", 1, "--steps", 64 * 12, "--out", tmp_path / "q", "-q", *FLAGS).output == ""


@pytest.mark.slow
def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"envs: {JAX}\nseeds: 2\ngrid: {{ppo.clip_epsilon: [0.1, 0.2]}}\n")
    done = invoke(file, "--steps", 10_000, "--dry-run", "--out", tmp_path / "e", *FLAGS)
    assert done.exit_code == 0, done.output
    assert "clip_epsilon=0.1" in done.output
    assert "4 runs, at most 40,000 steps" in done.output
    assert "Estimated time: at most about" in done.output
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "Name an environment"),
        ([JAX, "--trials", "0"], "--trials must be at least 1"),
        ([JAX, "--trials", "some"], "--trials must be"),
        (["nothing.yaml"], "Cannot read the configuration nothing.yaml"),
        ([JAX, "--resume", "somewhere"], "only --jobs, --trust and --quiet can be given"),
        (["--resume", "somewhere", "--no-mlflow"], "only --jobs, --trust and --quiet can be given"),
        (["--resume", "somewhere", "--dry-run"], "only --jobs, --trust and --quiet can be given"),
        (["--resume", "somewhere"], "it has no experiment.json"),
        ([JAX, "--mlflow", "http://x", "--no-mlflow"], "cannot be used together"),
    ],
)
def test_mistakes_are_answered_in_words(words: list[Any], answer: str) -> None:
    with pytest.raises(UserError, match=answer.replace("-", r"\-")):
        CliRunner().invoke(app, ["experiment", *words], catch_exceptions=False)


PLAN = """
envs: [{envs}]
seeds: 2
base:
  train: {{total_timesteps: {steps}}}
  env: {{num_envs: 4, groups: 1}}
  ppo: {{rollout_length: 16, minibatch_size: 32, epochs_per_update: 2}}
  eval: {{frequency: 20, episodes: 3}}
  checkpoint: {{every_steps: 512}}
preset: false
"""


def started(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def wait_for_rows(out: Path, more: int, process: subprocess.Popen[bytes]) -> None:
    """Until the runs have that many rows more."""

    def count() -> int:
        return sum(file.read_bytes().count(b"\n") for file in out.glob("runs/*/metrics.jsonl"))

    before = count()
    while count() < before + more:
        assert process.stdout is not None
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.05)


def assert_interrupted(process: subprocess.Popen[bytes], number: int, out: Path) -> None:
    """A signal saves the runs at hand, and it is said how to go on."""
    process.send_signal(number)
    said = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 128 + number, said
    assert f"`proximo experiment --resume {out}` continues it" in said
    begun = [path for path in out.glob("runs/*") if (path / "metrics.jsonl").exists()]
    assert begun
    reasons = {json.loads((path / "result.json").read_text())["stop_reason"] for path in begun}
    assert "interrupted" in reasons <= {"interrupted", "budget"}
    assert json.loads((out / "summary.json").read_text())["runs"]


@pytest.mark.slow
def test_killed_interrupted_and_resumed_ends_as_if_it_never_was(tmp_path: Path) -> None:
    """Two runs in threads, and two in processes of their own."""
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN.format(envs=f"{JAX}, {HOST}", steps=64 * 100))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    assert invoke(file, "--out", tmp_path / "whole" / "e").exit_code == 0
    out = tmp_path / "killed" / "e"
    for words, number in (([file, "--out", out], signal.SIGKILL), (["--resume", out], signal.SIGINT)):
        process = started(*words)
        while not out.exists():
            time.sleep(0.05)
        wait_for_rows(out, 80, process)
        if number == signal.SIGKILL:
            process.kill()
            process.communicate()
        else:
            assert_interrupted(process, number, out)
    done = invoke("--resume", out)
    assert done.exit_code == 0, done.output
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (out, tmp_path / "whole" / "e"))
    assert plain(ours) == plain(theirs)
    for run in Plan.load(out).runs:
        assert policy(out / run.folder) == policy(tmp_path / "whole" / "e" / run.folder)


@pytest.mark.learning
def test_an_experiment_that_is_terminated_saves_its_runs_and_says_how_to_go_on(tmp_path: Path) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "e"
    file.write_text(PLAN.format(envs=f"{JAX}, {HOST}", steps=200_000))
    process = started(file, "--out", out)
    while not out.exists():
        time.sleep(0.05)
    wait_for_rows(out, 50, process)
    assert_interrupted(process, signal.SIGTERM, out)


def test_the_display_counts_runs_and_says_each_note_once(tmp_path: Path) -> None:
    from rich.console import Console

    console = Console(record=True, width=120, force_terminal=True, color_system=None)
    plan = make_plan([JAX], make_trials(None, None, 2), {}, {"train.total_timesteps": 1000})
    display = ProgressDisplay(console)
    display.start(plan, tmp_path, list(plan.runs), 2)
    with display:
        display.began(plan.runs[0])
        display.advanced(plan.runs[0], {"step": 500, "recent/return_mean": 12.0})
        for run, time_taken in zip(plan.runs, (8, 9), strict=True):
            display.noted(run, f"A step takes {time_taken} us.")
        shown = Console(record=True, width=120)
        shown.print(display._table())
        one, other = (Job(run.config, tmp_path / run.folder) for run in plan.runs)
        display.ended(plan.runs[0], Ended(one, "complete", seconds=3.0))
        display.ended(plan.runs[1], Ended(other, "failed", "It broke."))
    text = shown.export_text()
    assert "0 of 2 runs" in text
    assert "500 / 2,048 steps" in text, "which is one update"
    said = console.export_text()
    assert said.count("A step takes") == 1
    assert "seed100000: It broke." in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_experiment_its_trials_and_their_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__).parent.parent / ".pytest_cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PROXIMO_MLFLOW", raising=False)
    out = tmp_path / "e"
    heard = Heard()
    summary = run_multiple_experiments(JAX, CLIP, seeds=2, out=out, preset=False, progress=heard, **SHORT)
    assert heard.notes == []
    assert CliRunner().invoke(app, ["sync", str(out)]).exit_code == 0
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(JAX)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parents = {run.info.run_name: run.data.tags.get("mlflow.parentRunId") for run in runs}
    ids = {run.info.run_name: run.info.run_id for run in runs}
    assert len(runs) == len(ids) == 1 + 2 + 4
    assert parents["e"] is None
    assert parents["careful"] == parents["bold"] == ids["e"]
    for name, parent in parents.items():
        if "seed" in name:
            assert parent == ids[name.partition("--")[0]]
    by_name = {run.info.run_name: run for run in runs}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert by_name["bold"].data.params == {"ppo.clip_epsilon": "0.4", "ppo.learning_rate": "0.001"}
    careful = summary["trials"][0]["scores"][JAX]["iqm"]
    assert by_name["careful"].data.metrics["gymnax-CartPole-v1/iqm"] == pytest.approx(careful)
    assert by_name["e"].data.metrics == {"runs": 4.0, "runs_counted": 4.0}
    files = {file.path for file in client.list_artifacts(ids["e"])}
    assert files == {"plots", "report.html", "summary.csv", "summary.json"}
    assert any(file.path.endswith(".png") for file in client.list_artifacts(ids["e"], "plots"))
    assert by_name["careful--seed0"].data.metrics["update"] == 12


def plots(folder: Path) -> list[str]:
    return sorted(file.name for file in (Path(folder) / "plots").glob("*"))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_waits_for_all_that_a_run_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has ended when its process lets go of it, and not before."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__).parent.parent / ".pytest_cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "e"
    run_multiple_experiments(JAX, seeds=1, out=out, preset=False, **SHORT)
    (run,) = (out / "runs").iterdir()
    feeder = ExperimentFeeder(out)
    store = RunDirectory.reopen(run, 12)
    feeder.feed()
    memory = json.loads((run / "mlflow.json").read_text())
    client = MlflowClient(memory["uri"])
    assert (feeder.sent, client.get_run(memory["run_id"]).info.status) == (0, "RUNNING")
    (run / "plots").mkdir(exist_ok=True)
    (run / "plots" / "late.png").write_bytes(b"a picture")
    store.close()
    feeder.feed()
    kept = client.get_run(memory["run_id"])
    assert (feeder.sent, kept.info.status) == (1, "FINISHED")
    assert plots(kept.info.artifact_uri) == plots(run) == ["late.png"]


@pytest.mark.slow
@pytest.mark.pictures
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_pictures_of_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__).parent.parent / ".pytest_cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PROXIMO_MLFLOW", raising=False)
    monkeypatch.setattr("proximo.tracking.process.PATIENCE", 60.0)
    heard = Heard()
    run_multiple_experiments(JAX, seeds=3, out=tmp_path / "e", preset=False, progress=heard, **SHORT)
    assert heard.notes == []
    for run in (tmp_path / "e" / "runs").iterdir():
        memory = json.loads((run / "mlflow.json").read_text())
        kept = MlflowClient(memory["uri"]).get_run(memory["run_id"])
        assert kept.info.status == "FINISHED"
        assert len(plots(run)) == 8
        assert plots(kept.info.artifact_uri) == plots(run)


def test_runs_of_experiments_are_listed_and_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_multiple_experiments(JAX, seeds=1, out="runs/e", preset=False, **SHORT | {"total_timesteps": 64})
    done = CliRunner().invoke(app, ["runs", "--json"])
    assert [run["run"] for run in json.loads(done.output)] == ["runs/e/runs/gymnax-CartPole-v1--seed0"]
    assert "e/runs/gymnax" in CliRunner().invoke(app, ["runs"]).output
    assert find_run(Path("e/runs/gymnax-CartPole-v1--seed0")).is_dir()
    done = CliRunner().invoke(app, ["compare", "e", "--out", "c"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "c" / "report.html").is_file()
    with pytest.raises(UserError, match="c is not an empty folder"):
        CliRunner().invoke(app, ["compare", "e", "--out", "c"], catch_exceptions=False)


def test_a_single_run_is_made_from_a_mapping_a_file_or_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = SMALL | {"env": SMALL["env"] | {"id": JAX}, "train": {"total_timesteps": 64 * 12}}
    (tmp_path / "it.yaml").write_text(json.dumps(small))
    config = settings.build(settings.from_mapping(small, "it"))
    for given in (small, "it.yaml", Path("it.yaml"), config):
        assert run_single_experiment(given)["total_steps"] == 64 * 12
    assert len(list((tmp_path / "runs").glob("gymnax-CartPole-v1-*"))) == 4
    assert run_single_experiment(small, "here")["total_steps"] == 64 * 12
    with pytest.raises(UserError, match="complete"):
        run_single_experiment(small, "here")
