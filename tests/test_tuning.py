"""Whole studies: what is found is better, and how often the search was stopped makes no difference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import pytest

import proximo
from proximo import settings
from proximo.errors import UserError
from proximo.experiment.plan import Plan, PlannedRun
from proximo.experiment.progress import Progress
from proximo.fleet.jobs import Ended
from proximo.presets import find_preset, own_preset
from proximo.tuning import protocol
from proximo.tuning.protocol import Protocol
from proximo.tuning.search import Milestones, carry_out
from proximo.tuning.space import from_mapping
from proximo.tuning.study import Asked, Study, open_storage

pytest.importorskip("optuna")
JAX = "gymnax/CartPole-v1"
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
NUMBERS = {"ppo.learning_rate": {"log": [1e-4, 1e-2]}, "1 - ppo.gamma": {"log": [1e-3, 0.1]}}


class Stops(Progress):
    """Sends a signal when a run of this name begins."""

    def __init__(self, folder: str = ""):
        self.folder, self.ends, self.heads = folder, list[str](), list[str]()

    def began(self, run: PlannedRun) -> None:
        if run.folder == f"runs/{self.folder}":
            os.kill(os.getpid(), signal.SIGTERM)

    def ended(self, run: PlannedRun, how: Ended) -> None:
        self.ends.append(f"{run.folder.removeprefix('runs/')} {how.end}")

    def headline(self, text: str) -> None:
        self.heads.append(text)


def study(out: Path, progress: Progress | None = None, **given: Any) -> dict[str, Any]:
    how: dict[str, Any] = {"trials": 4, "space": NUMBERS, "jobs": 1, "preset": False}
    return proximo.tune(JAX, out=out, progress=progress, **(how | SHORT | given))


def recorded(out: Path) -> list[Asked]:
    asked = Protocol.load(out)
    return Study(asked.space, asked.base, open_storage(out, None), asked.name).trials


def without_time(out: Path) -> dict[str, Any]:
    return {name: part for name, part in json.loads((out / "summary.json").read_text()).items() if name != "timing"}


def policies(out: Path) -> dict[str, bytes]:
    found = (out / "runs").glob("*/models/final_actor.safetensors")
    return {path.parts[-3]: path.read_bytes() for path in found}


def assert_same_study(out: Path, whole: Path) -> None:
    assert recorded(out) == recorded(whole)
    assert policies(out) == policies(whole)
    one, other = without_time(out), without_time(whole)
    assert {**one, "search": {**one["search"], "notes": []}} == {**other, "search": {**other["search"], "notes": []}}
    assert (out / "best.yaml").read_text() == (whole / "best.yaml").read_text()
    assert [run.folder for run in Plan.load(out).runs] == [run.folder for run in Plan.load(whole).runs]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nothing has disturbed."""
    out = tmp_path_factory.mktemp("whole") / "study"
    study(out)
    return out


@pytest.mark.slow
def test_a_study_leaves_a_report_and_settings_that_can_be_trained_with(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    search = summary["search"]
    assert [trial["state"] for trial in search["trials"]] == ["complete"] * 4
    assert len(search["finalists"]) == 3
    assert search["verdict"] in ("better", "no difference shown", "worse")
    assert search["winner"] in [one["number"] for one in search["finalists"]]
    assert len(policies(whole)) == 4 + 15 + (10 if search["winner"] else 0)
    page = (whole / "report.html").read_text()
    for words in ("The search", "Finalists", "All trials", search["sentence"], "History of the search"):
        assert words in page
    assert sum(search["importances"].values()) == pytest.approx(1.0)
    trainer = proximo.PPOTrainer(config=whole / "best.yaml", out=whole.parent / "again")
    chosen = recorded(whole)[0 if search["verdict"] == "worse" else search["winner"]]
    assert trainer.config.ppo.learning_rate == chosen.params["ppo.learning_rate"]
    assert trainer.config.network.hidden_sizes == (16,)


@pytest.mark.slow
def test_a_study_that_was_stopped_in_every_phase_is_the_undisturbed_one(whole: Path, tmp_path: Path) -> None:
    winner = json.loads((whole / "summary.json").read_text())["search"]["winner"]
    assert winner, "choose another seed: trial 0 has won"
    first = Stops("trial001")
    study(tmp_path / "s", first)
    assert first.signal == signal.SIGTERM
    assert first.ends == ["trial000 complete", "trial001 interrupted"]
    assert recorded(tmp_path / "s")[1].state == "running"
    assert (
        "not yet" in without_time(tmp_path / "s")["search"]["sentence"]
        or "No trial" in (without_time(tmp_path / "s")["search"]["sentence"])
    )
    done = {"trial000"}
    some = recorded(whole)
    finalists = sorted(some, key=lambda trial: (-(trial.value or 0.0), trial.number))[:3]
    for stop in (f"trial{finalists[1].number:03d}-again-seed20000", f"trial{winner:03d}-test-seed100000", ""):
        progress = Stops(stop)
        carry_out(Protocol.load(tmp_path / "s"), tmp_path / "s", 1, progress)
        complete = {end.removesuffix(" complete") for end in progress.ends if end.endswith(" complete")}
        assert not complete & done, "nothing is trained twice"
        done |= complete
    assert_same_study(tmp_path / "s", whole)


@pytest.mark.slow
def test_trials_that_fail_are_told_named_and_not_chosen(tmp_path: Path) -> None:
    space = {"ppo.learning_rate": {"choices": [1e-3, 1e30]}, "ppo.clip_epsilon": {"choices": [0.1, 0.2]}}
    with pytest.warns(UserWarning, match="failed"):
        summary = study(tmp_path / "s", space=space, sampler="random", trials=6, jobs=2)
    states = {trial["number"]: trial["state"] for trial in summary["search"]["trials"]}
    failed = [number for number, state in states.items() if state == "failed"]
    assert failed
    assert all(summary["search"]["trials"][number]["params"]["ppo.learning_rate"] == 1e30 for number in failed)
    assert all("not finite" in summary["search"]["trials"][number]["why"] for number in failed)
    assert not {one["number"] for one in summary["search"]["finalists"]} & {*failed}
    page = (tmp_path / "s" / "report.html").read_text()
    assert "Trials that failed" in page
    assert f"<td>trial {failed[0]}</td>" in page


@pytest.mark.slow
def test_many_trials_that_differ_in_numbers_compile_once(whole: Path, tmp_path: Path) -> None:
    """`whole` has compiled what there is to compile; 32 trials with other numbers and seeds compile nothing."""
    compilations: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if "backend_compile" in event:
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        summary = study(tmp_path / "s", trials=32, jobs=2, sampler="random", seed=1)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(summary["search"]["trials"]) == 32
    assert len({tuple(trial["params"].values()) for trial in summary["search"]["trials"]}) == 32
    assert not compilations


@pytest.mark.parametrize(
    "seeds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.learning)]
)
def test_a_bad_learning_rate_is_found_out(tmp_path: Path, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole protocol, and with the best trial alone and one seed where it was five."""
    if seeds == 1:
        monkeypatch.setattr(protocol, "FINALISTS", 1)
        monkeypatch.setattr(protocol, "SEEDS", 1)
    space = {"ppo.learning_rate": {"log": [3e-4, 3e-3]}}
    given = {"ppo.learning_rate": 1e-6, "stop.target_reward": None, "eval.frequency": 0}
    progress = Stops()
    summary = proximo.tune(
        JAX, trials=3, steps=32_768, space=space, config=given, out=tmp_path / "s", progress=progress, sampler="random"
    )
    assert summary["search"]["verdict"] == ("better" if seeds == 5 else "no difference shown")
    tuned, first = summary["trials"]
    assert first["name"] == "given settings (trial 0)"
    assert tuned["scores"][JAX]["iqm"] >= 475 > first["scores"][JAX]["iqm"]
    assert progress.heads[-1].startswith("3 of 3 trials, best so far ")


def test_milestones_are_the_first_rows_that_reach_them() -> None:
    rows = [{"step": step, "recent/return_mean": value} for step, value in ((29, 1.0), (30, 2.0), (52, 3.0), (99, 4.0))]
    assert list(Milestones(100).passed(rows)) == [
        (30, 2.0),
        (40, 3.0),
        (50, 3.0),
        (60, 4.0),
        (70, 4.0),
        (80, 4.0),
        (90, 4.0),
    ]
    again = Milestones(100, [(30, 2.0), (40, 3.0)])
    assert [milestone for milestone, _ in again.passed(rows[:3])] == [50]
    assert list(Milestones(100).passed([{"step": 35, "recent/return_mean": None}])) == []


@pytest.mark.slow
def test_bad_trials_are_pruned_and_the_rest_is_not(tmp_path: Path) -> None:
    summary = study(tmp_path / "s", pruner="hyperband", trials=6)
    trials = summary["search"]["trials"]
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert pruned
    assert trials[0]["state"] == "complete"
    assert all(trial["reported"][0][0] >= 30 for trial in trials if trial["reported"])
    assert all(trial["score"] is None for trial in pruned)


class Walk(gymnasium.Env[Any, Any]):
    """One step, whose reward is the action."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample() * 0, float(action[0]), True, False, {}


@pytest.mark.learning
def test_a_factory_is_tuned_and_must_be_handed_in_again(tmp_path: Path) -> None:
    out = tmp_path / "s"
    summary = proximo.tune(Walk, trials=2, jobs=2, out=out, space=NUMBERS, preset=False, **SHORT)
    assert [trial["state"] for trial in summary["search"]["trials"]] == ["complete"] * 2
    with pytest.raises(UserError, match="handed in as a Python object; hand it in again"):
        carry_out(Protocol.load(out), out)
    again = carry_out(Protocol.load(out), out, env=Walk)
    assert {**again, "timing": 0} == {**summary, "timing": 0}


@pytest.mark.slow
def test_presets_of_ones_own_are_used_and_said(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = find_preset(JAX)
    carry_out(Protocol.load(whole), whole, 1, save_preset=True)
    file = own_preset(JAX)
    assert file == tmp_path / "proximo" / "presets" / "gymnax" / "CartPole-v1.yaml"
    assert file.is_file()
    assert find_preset(JAX)["network.hidden_sizes"] == (16,)
    assert find_preset(JAX)["track.success_return"] == before["track.success_return"]
    trainer = proximo.PPOTrainer(JAX, out=tmp_path / "run")
    assert trainer.config.network.hidden_sizes == (16,)
    assert any(f"with your own from {file}" in remark for remark in trainer._start.remarks)


def test_studies_are_refused_in_sentences(tmp_path: Path, proximo: Callable[..., Any]) -> None:
    whole = tmp_path / "study"
    Protocol("s", settings.build({"env.id": JAX}), "defaults", from_mapping(NUMBERS, "space")).save(whole)
    cases = {
        ("tune",): "Name an environment",
        ("tune", JAX, "--sampler", "best"): "--sampler must be one of tpe, random, gp",
        ("tune", JAX, "--trials", "0"): "--trials must be at least 1",
        ("tune", JAX, "--space", "nowhere.yaml"): "Cannot read the configuration nowhere.yaml",
        ("tune", "--resume", str(tmp_path)): "is not the folder of a study",
        ("tune", JAX, "--resume", str(whole)): "--resume continues a study as it was asked for",
        ("tune", "--resume", str(whole), "--storage", "sqlite:///x.db"): "is kept in a journal in its folder",
        ("experiment", "--resume", str(whole)): "is the folder of a study; `proximo tune --resume",
        ("tune", JAX, "--out", str(whole)): "is not an empty folder",
        (
            "tune",
            "LunarLander-v3",
            "--env-arg",
            "gravity=-5",
            "--save-preset",
        ): "--save-preset keeps settings under the id",
    }
    for words, sentence in cases.items():
        done = proximo(*words, cwd=tmp_path)
        assert done.returncode == 2, words
        assert sentence in " ".join(done.stderr.split()), words


@pytest.mark.slow
def test_a_dry_run_shows_the_space_and_trains_nothing(tmp_path: Path, proximo: Callable[..., Any]) -> None:
    (tmp_path / "space.yaml").write_text("ppo.learning_rate: {log: [1e-4, 1e-2]}\n")
    given = [f"--set={name}={value}" for name, value in (("env.num_envs", 4), ("ppo.rollout_length", 16))]
    done = proximo(
        "tune", JAX, "--space", "space.yaml", "--trials", 5, "--steps", 1000, "--dry-run", *given, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "ppo.learning_rate" in done.stdout
    assert "30 runs of 1,000 steps at most: 5 trials" in " ".join(done.stdout.split())
    assert "1 shapes of programs at most" in " ".join(done.stdout.split())
    assert "Estimated time" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("moment", ["trial000", "trial002", "*-again-*", "*-test-*"])
def test_a_command_that_was_killed_goes_on(whole: Path, tmp_path: Path, number: int, moment: str) -> None:
    """When a run of this name has begun, and when it has begun again; the study is then the undisturbed one."""
    out = tmp_path / "study"
    code = f"import proximo; proximo.tune({JAX!r}, out={str(out)!r}, space={NUMBERS!r}, trials=4, jobs=1, "
    code += f"preset=False, **{SHORT!r})"
    command = [sys.executable, "-c", code]
    for _ in range(2):
        process = subprocess.Popen(command)
        until = time.monotonic() + 300
        while process.poll() is None and not [*out.glob(f"runs/{moment}/metrics.jsonl")] and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        process.wait()
        command = [sys.executable, "-c", "from proximo.cli import main; main()", "tune", "--resume", str(out)]
        command += ["--jobs", "1", "--quiet"]
    assert subprocess.run(command, check=False).returncode == 0
    assert_same_study(out, whole)
