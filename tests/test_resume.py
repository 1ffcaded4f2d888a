"""Nothing is lost: runs that are stopped in any way go on as if they had not been."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import probes
import restorable
from killed import SETTINGS, assert_same_run, kill_at_random_moments, lines, run_to_end
from proximo import PPOAgent, PPOTrainer
from proximo.config import MAX_SEED
from proximo.errors import EnvError, TrainingError, UserError
from proximo.run_dir.directory import RunDirectory
from proximo.seeding import resumed_seed
from proximo.train import checkpoint, finish
from proximo.train.evaluations import Evaluations

pytestmark = pytest.mark.slow
SHORT = SETTINGS | {"total_timesteps": 64 * 20, "workers": 0}


def compiled() -> str:
    return "gymnax/CartPole-v1"


def hooked() -> Any:
    return restorable.Hooked


def registered() -> str:
    return "CartPole-v1"


def killed(make_env: Callable[[], Any], updates: int, workers: int, kills: int, folder: Path) -> list[Any]:
    """How often the run of `make_env` was resumed that was killed again and again, once it is like the undisturbed."""
    settings = {"total_timesteps": 64 * updates, "workers": workers}
    run_to_end(make_env, folder / "whole", settings)
    kill_at_random_moments(make_env, folder / "killed", settings, kills)
    assert_same_run(folder / "whole", folder / "killed")
    resumed: list[Any] = json.loads((folder / "killed" / "result.json").read_text())["resumed"]
    return resumed


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.learning)])
def test_runs_that_are_killed_again_and_again_end_with_the_same_bits(kills: int, tmp_path: Path) -> None:
    """Side by side, because most of the time is waiting."""
    kinds = {
        "compiled": (compiled, 300, 0, kills),
        "hook and workers": (hooked, 10 * kills, 2, kills),
        "replay": (registered, 150, 0, min(kills, 6)),
    }
    with ThreadPoolExecutor(len(kinds)) as pool:
        runs = {name: pool.submit(killed, *kind, tmp_path / name) for name, kind in kinds.items()}
        for name, run in runs.items():
            resumed = run.result()
            assert len(resumed) >= kinds[name][3] / 2, name
            assert all(part["exact"] for part in resumed), name


def trainer(path: Path, env: Any = "gymnax/CartPole-v1", **keywords: Any) -> PPOTrainer:
    return PPOTrainer(env, out=path, preset=False, console=probes.Notes(), **(SHORT | keywords))


def resume(path: Path, env: Any = None, **options: Any) -> PPOTrainer:
    return PPOTrainer.resume(path, env, console=probes.Notes(), **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    trainer(path).train()
    return path


def at_update(number: int, act: Callable[[], Any]) -> probes.EachUpdate:
    return probes.EachUpdate(lambda metrics: act() if metrics["update"] == number else None)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def after_an_interrupt(call: Callable[..., Any]) -> Callable[..., Any]:
    def interrupted(*args: Any) -> Any:
        interrupt()
        return call(*args)

    return interrupted


def said_by(one: PPOTrainer) -> list[str]:
    assert isinstance(one.console, probes.Notes)
    return one.console.said


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


# What stops a run


@pytest.mark.parametrize("update", [5, 7, 14])
def test_an_interrupted_run_ends_with_the_same_bits(update: int, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = trainer(path).train(callback=at_update(update, interrupt))
    assert (result["stop_reason"], result["updates"]) == ("interrupted", update)
    assert resume(path).train()["resumed"] == [{"step": 64 * update, "exact": True}]
    assert_same_run(whole, path)
    with pytest.raises(UserError, match="is not an empty folder"):
        trainer(path).train()


def test_a_run_that_is_interrupted_before_its_final_evaluation_is_evaluated_later(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    one = trainer(path)
    evaluate = finish.final_evaluation
    with monkeypatch.context() as patch:
        patch.setattr(finish, "final_evaluation", after_an_interrupt(evaluate))
        result = one.train()
    assert (result["stop_reason"], result["updates"], result["final_eval"]) == ("interrupted", 20, None)
    assert resume(path).train()["resumed"] == [{"step": 64 * 20, "exact": True}]
    assert_same_run(whole, path)


def test_a_run_on_an_environment_that_is_not_deterministic_says_so_once_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    trainer(path, restorable.Chance).train(callback=at_update(5, interrupt))
    again = resume(path, restorable.Chance)
    result = again.train()
    assert result["resumed"] == [{"step": 64 * 5, "exact": False}]
    assert result["total_steps"] == 64 * 20
    said = [sentence for sentence in said_by(again) if "cannot be restored:" in sentence]
    assert len(said) == 1
    assert said[0].startswith("The environment Chance cannot be restored: the same seed and the same 80 actions lead")


def test_an_interrupted_run_without_evaluations_keeps_the_same_best_policy(tmp_path: Path) -> None:
    """Judged after every third of 60 updates, and not once more where it was interrupted."""
    settings = {"eval_frequency": 0, "total_timesteps": 64 * 60}
    trainer(tmp_path / "whole", **settings).train()
    for update in (7, 19, 38):
        path = tmp_path / str(update)
        result = trainer(path, **settings).train(callback=at_update(update, interrupt))
        assert result["best_policy"]["step"] % (3 * 64) == 0
        resume(path).train()
        assert_same_run(tmp_path / "whole", path)


def test_an_evaluation_that_was_interrupted_is_made_up_for(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    one = trainer(path)
    evaluate = one.evaluations.play
    monkeypatch.setattr(one.evaluations, "play", after_an_interrupt(evaluate))
    assert one.train()["updates"] == 7
    assert len(lines(path)) == 6  # the seventh row waits for its evaluation
    resume(path).train()
    assert_same_run(whole, path)


CLAIMS = {"target_reward": 30.0, "convergence_window": 4, "early_stopping_patience": 1, "total_timesteps": 64 * 30}
ALTERNATING = probes.Alternating()
REFUSED = CLAIMS | {"target_reward": 3.0, "total_timesteps": 64 * 9}
CLAIMING: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "refused": (lambda: ALTERNATING, REFUSED | {"eval_frequency": 0}),
    "refused, beside evaluations": (lambda: ALTERNATING, REFUSED),
    "compiled": (compiled, CLAIMS | {"seed": 6, "eval_frequency": 0}),
    "host": (registered, CLAIMS | {"seed": 8, "eval_frequency": 0}),
    "evaluations decide": (compiled, CLAIMS | {"stop_on": "evaluation", "eval_frequency": 3}),
}


@pytest.mark.parametrize("kind", CLAIMING)
def test_claims_of_the_goal_are_resumed_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every evaluation is interrupted the first time, be it one that decides a claim, one that is due, or the last."""
    make_env, settings = CLAIMING[kind]
    whole = trainer(tmp_path / "whole", make_env(), **settings).train()
    assert whole["unconfirmed_goals"] > 0 or "refused" not in kind
    path, calls = tmp_path / "run", []
    evaluate = Evaluations.play

    def interrupted(one: Any, *given: Any) -> Any:
        calls.append(given)
        if len(calls) % 2:
            interrupt()
        return evaluate(one, *given)

    monkeypatch.setattr(Evaluations, "play", interrupted)
    result = trainer(path, make_env(), **settings).train()
    while result["stop_reason"] == "interrupted" and len(calls) < 100:
        assert result["final_eval"] is None
        result = resume(path, make_env()).train()
    assert len(result["resumed"]) == len(calls) // 2 > 0
    assert_same_run(tmp_path / "whole", path)


def test_a_goal_is_claimed_again_after_a_kill(tmp_path: Path) -> None:
    """Killed before the last checkpoints: what was claimed since is claimed again, and refused again."""
    trainer(tmp_path / "whole", ALTERNATING, **REFUSED).train()
    path = shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (path / "result.json").unlink()
    for step in checkpoint.steps(path)[1:]:
        (path / "checkpoints" / f"{checkpoint.step_name(step)}.safetensors").unlink()
    resume(path, ALTERNATING).train()
    assert_same_run(tmp_path / "whole", path)


def test_a_confirmed_goal_is_not_put_in_question_by_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the last checkpoint, and before the result: the evaluation that confirmed it is known."""
    goal = {"target_reward": 1.0, "convergence_window": 8, "early_stopping_patience": 1}
    result = trainer(tmp_path / "run", probes.OneStep(), **goal).train()
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(Evaluations, "play", None)
    again = resume(tmp_path / "run", probes.OneStep()).train()
    assert (again["stop_reason"], again["converged"]) == ("converged", True)
    assert again["final_eval"] == result["final_eval"]


def test_a_second_interrupt_ends_the_run_at_once(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proximo.train.interrupt.SAME_SECONDS", 0.0)
    path = tmp_path / "run"
    one = trainer(path)
    evaluate = one.evaluations.play
    monkeypatch.setattr(one.evaluations, "play", after_an_interrupt(after_an_interrupt(evaluate)))
    with pytest.raises(KeyboardInterrupt):
        one.train()
    resume(path).train()
    assert_same_run(whole, path)


def test_a_callback_that_raises_can_be_mended(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        trainer(path).train(callback=at_update(9, lambda: 1 / 0))
    resume(path).train()
    assert_same_run(whole, path)


def test_a_run_that_died_at_its_very_end_is_completed(whole: Path, copy: Path) -> None:
    (copy / "result.json").unlink()
    for file in (copy / "models").glob("final_*"):
        file.unlink()
    with (copy / "metrics.jsonl").open("a") as rows:
        rows.write('{"update": 21, "st')
    resume(copy).train()
    assert lines(copy) == lines(whole)
    models = [{file.name: file.read_bytes() for file in (run / "models").iterdir()} for run in (whole, copy)]
    assert set(models[0]) >= {"best_return_pi_ckpt.safetensors", "final_actor.safetensors", "final_critic.safetensors"}
    assert models[0] == models[1]


def test_a_failed_environment_can_be_mended_and_gone_on_with(tmp_path: Path) -> None:
    """The trainer cannot know where the environments of a broken rollout stood: they start anew, and it is said."""

    class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            Breaks.steps += 1
            if Breaks.steps == 350:
                raise RuntimeError("out of order")
            return super().step(action)

    def make() -> Breaks:
        return Breaks(gymnasium.make("CartPole-v1"))

    path = tmp_path / "run"
    with pytest.raises(EnvError, match=r"out of order.*proximo resume"):
        trainer(path, make, eval_frequency=0).train()
    with pytest.raises(UserError, match=r"PPOTrainer.resume\(run, env\)"):
        resume(path)
    again = resume(path, make)
    result = again.train()
    assert result["stop_reason"] == "budget"
    assert result["total_steps"] == 64 * 20 == 64 * len(lines(path))
    assert [part["exact"] for part in result["resumed"]] == [False]
    assert any("new episodes begin, with new seeds" in sentence for sentence in said_by(again))
    assert resumed_seed(MAX_SEED, 1000) < 2**30


# Going on


def test_a_complete_run_goes_on_only_with_more_steps(copy: Path) -> None:
    with pytest.raises(UserError, match=r"complete \(budget\) after 1,280 steps; --steps N trains on"):
        resume(copy).train()
    with pytest.raises(UserError, match="at least 1 step more, not 0"):
        resume(copy, steps=0)
    result = resume(copy, steps=200).train()
    assert (result["total_steps"], result["updates"]) == (1280 + 256, 24)
    rows = [json.loads(line) for line in lines(copy)]
    assert [row["update"] for row in rows] == list(range(1, 25))
    # The learning rate falls to zero over the new total: 3e-4 * (1 - 23 / 24) in the last update.
    assert rows[-1]["ppo/learning_rate"] == pytest.approx(3e-4 / 24, rel=1e-5)


def test_a_run_that_goes_on_knows_how_good_it_was(whole: Path, tmp_path: Path) -> None:
    """The last checkpoint of a complete run is written before its last evaluation, and again if that was the best."""
    for run in (whole, tmp_path / "short"):
        if run != whole:
            trainer(run, total_timesteps=64).train()  # its only evaluation is the final one
        result = json.loads((run / "result.json").read_text())
        assert checkpoint.load(checkpoint.newest(run)).progress.counters.best_score == result["best_policy"]["score"]
    assert result["best_policy"]["score"] == result["final_eval"]["return_mean"]


def test_a_reached_goal_does_not_end_what_is_asked_for_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    goal = {"target_reward": 1.0, "convergence_window": 8, "early_stopping_patience": 1}
    result = trainer(path, probes.OneStep(), **goal).train()
    assert (result["stop_reason"], result["updates"]) == ("converged", 1)
    with pytest.raises(UserError, match=r"complete \(converged\)"):
        resume(path, probes.OneStep()).train()
    result = resume(path, probes.OneStep(), steps=640).train()
    assert (result["stop_reason"], result["updates"], result["converged"]) == ("budget", 11, True)


def test_used_up_budgets_are_lifted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert trainer(path, probes.OneStep(), max_episodes=64).train()["updates"] == 1
    assert resume(path, probes.OneStep(), steps=128).train()["updates"] == 3


def test_the_policy_of_a_run_is_there_before_it_goes_on(whole: Path) -> None:
    one = resume(whole)
    final = PPOAgent.load(whole / "models" / "final_actor.safetensors")
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.testing.assert_array_equal(one.agent.act(obs), final.act(obs))
    assert one.evaluate(num_episodes=3)["avg_reward"] > 0


def test_a_damaged_checkpoint_gives_way_to_the_one_before(whole: Path, copy: Path) -> None:
    newest = checkpoint.newest(copy)
    newest.write_bytes(newest.read_bytes()[:-7])
    again = resume(copy)
    assert "The one before is used." in said_by(again)[0]
    assert again.train()["resumed"] == [{"step": 64 * 18, "exact": True}]
    assert_same_run(whole, copy)
    for file in (copy / "checkpoints").iterdir():
        file.write_bytes(b"")
    with pytest.raises(UserError, match="has no checkpoint to resume from"):
        resume(copy)


def test_what_is_no_run_is_refused(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        resume(tmp_path / "nothing")
    rows = lines(copy)
    (copy / "metrics.jsonl").write_text("\n".join(rows[:3]) + "\n")
    with pytest.raises(UserError, match="has lost rows: the run had made 20 updates"):
        resume(copy, steps=64).train()


def test_a_run_belongs_to_one_process(copy: Path) -> None:
    store = RunDirectory.reopen(copy, 20)
    with pytest.raises(UserError, match="is being trained by another process"):
        resume(copy, steps=64).train()
    store.close()
    assert resume(copy, steps=64).train()["updates"] == 21


# What is kept


def test_the_last_checkpoints_and_the_best_are_kept(whole: Path) -> None:
    assert sorted(file.name for file in (whole / "checkpoints").iterdir()) == [
        "best.safetensors",
        "step_000000001024.safetensors",
        "step_000000001152.safetensors",
        "step_000000001280.safetensors",
    ]
    result = json.loads((whole / "result.json").read_text())
    scores = {
        row["step"]: row["eval/return_mean"] for row in map(json.loads, lines(whole)) if "eval/return_mean" in row
    }
    scores[1280] = result["final_eval"]["return_mean"]
    best = max(scores, key=lambda step: (scores[step], step))
    assert result["best_policy"] == {"step": best, "score": scores[best], "by": "evaluation"}
    kept = checkpoint.load(whole / "checkpoints" / "best.safetensors")
    assert kept.progress.counters.steps == best
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    saved = PPOAgent.load(whole / "models" / "best_return_pi_ckpt.safetensors")
    np.testing.assert_array_equal(kept.agents().public.act(obs), saved.act(obs))


def test_policies_are_kept_evenly(tmp_path: Path) -> None:
    """Three of 20 updates: after 7 (20 / 3 = 6.67), 13 and 20."""
    seen = {}
    one = trainer(tmp_path / "run", eval_frequency=0)

    def note(metrics: dict[str, Any]) -> None:
        seen[metrics["update"]] = jax.tree.leaves(one.agent.params["actor"])[0]

    one.train(callback=probes.EachUpdate(note))
    for number, update in ((1, 7), (2, 13), (3, 20)):
        kept = PPOAgent.load(tmp_path / "run" / "models" / f"pi_ckpt{number}.safetensors")
        np.testing.assert_array_equal(jax.tree.leaves(kept.params["actor"])[0], seen[update])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best_policy"]["by"] == "training"


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_evaluating_changes_nothing(env: str, tmp_path: Path) -> None:
    one = trainer(tmp_path / "with", env, eval_frequency=2)
    other = trainer(tmp_path / "without", env, eval_frequency=0)
    one.train()
    other.train()
    for a, b in zip(jax.tree.leaves(one.agent.params), jax.tree.leaves(other.agent.params), strict=True):
        np.testing.assert_array_equal(a, b)


# A disk that fails


def test_a_full_disk_does_not_end_the_run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full from update 5 to 11: it is said once, and in the end nothing is missing but what was due meanwhile."""
    path = tmp_path / "run"
    replace = os.replace
    full: list[bool] = []

    def failing(*args: Any) -> Any:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(*args)

    monkeypatch.setattr(os, "replace", failing)
    one = trainer(path)

    def watch(metrics: dict[str, Any]) -> None:
        if metrics["update"] == 5:
            full.append(True)
        if metrics["update"] == 11:
            full.clear()

    one.train(callback=probes.EachUpdate(watch))
    assert [said for said in said_by(one) if "No space" in said] == [
        f"Cannot write to {path}: No space left on device. Training goes on, and writing is tried again."
    ]
    assert not list(path.rglob("*.partial"))
    assert not (path / "models" / "pi_ckpt1.safetensors").exists()  # due at update 7
    (whole.parent / "copy").exists() or shutil.copytree(whole, whole.parent / "copy")
    (whole.parent / "copy" / "models" / "pi_ckpt1.safetensors").unlink(missing_ok=True)
    assert_same_run(whole.parent / "copy", path)


def test_a_disk_that_stays_full_keeps_the_last_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = trainer(path)
    write = os.replace

    def failing(source: Any, target: Any) -> Any:
        if str(target).startswith(str(path)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(source, target)

    with pytest.raises(TrainingError) as caught:
        one.train(callback=at_update(9, lambda: monkeypatch.setattr(os, "replace", failing)))
    assert "No space left on device. The last checkpoint there is of step 512." in str(caught.value)
    elsewhere = str(caught.value).partition("What was trained is in ")[2].removesuffix(".")
    assert PPOAgent.load(elsewhere).act(np.zeros(4)) == one.agent.act(np.zeros(4))
    monkeypatch.undo()
    resume(path).train()
    assert_same_run(whole, path)


def test_a_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TrainingError, match=r"the folder of the run has vanished\. There is no checkpoint\. What was"):
        trainer(path).train(callback=at_update(5, lambda: shutil.rmtree(path)))
    assert not path.exists()


def test_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(UserError, match="Cannot write the run to /proc/run"):
        trainer(Path("/proc/run")).train()


MOVED = SETTINGS | {"total_timesteps": 64 * 6, "eval_frequency": 0, "every_steps": 64, "num_checkpoints": 0}


def rates(run: Path) -> list[float]:
    return [json.loads(line)["ppo/learning_rate"] for line in lines(run)]


def test_schedules_begin_again_and_stay_so_after_a_resume(tmp_path: Path) -> None:
    """Six updates of 3e-4 (1 - n / 6), then four of 3e-4 (1 - n / 4); stopped among these, and not stopped."""
    PPOTrainer(compiled(), out=tmp_path / "run", preset=False, **MOVED).train()
    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    trainer = PPOTrainer.resume(tmp_path / "run", steps=64 * 4, restart_schedules=True)
    assert trainer.config.train.schedule_start == 64 * 6
    trainer.train()
    falling = [3e-4 * (1 - n / 6) for n in range(6)] + [3e-4 * (1 - n / 4) for n in range(4)]
    np.testing.assert_allclose(rates(tmp_path / "run"), falling, rtol=1e-5)
    cut = PPOTrainer.resume(tmp_path / "cut", steps=64 * 4, restart_schedules=True)
    cut.train(probes.EachUpdate(lambda metrics: metrics["update"] < 8))
    PPOTrainer.resume(tmp_path / "cut").train()
    assert_same_run(tmp_path / "run", tmp_path / "cut")


def test_a_spent_schedule_is_said(tmp_path: Path) -> None:
    """Two steps more after six: the stretched schedule goes on at a quarter."""
    PPOTrainer(compiled(), out=tmp_path / "run", preset=False, **MOVED).train()
    notes = probes.Notes()
    PPOTrainer.resume(tmp_path / "run", steps=64 * 2, console=notes)
    assert any(
        note.startswith("The linear schedule of its learning rate was spent, 0 of 0.0003; stretched to the new end it")
        and "goes on from 7.5e-05 to 0. --restart-schedules" in note
        for note in notes.said
    )
    quiet = probes.Notes()
    PPOTrainer.resume(tmp_path / "run", steps=64 * 2, restart_schedules=True, console=quiet)
    assert quiet.said == []
    with pytest.raises(UserError, match=r"Schedules begin again with --steps N"):
        PPOTrainer.resume(tmp_path / "run", restart_schedules=True)


def test_an_adaptive_rate_begins_again_and_constant_ones_cannot(tmp_path: Path) -> None:
    adaptive = MOVED | {"learning_rate_schedule": "adaptive", "adaptive_kl": 1e-9}
    PPOTrainer(compiled(), out=tmp_path / "run", preset=False, **adaptive).train()
    PPOTrainer.resume(tmp_path / "run", steps=64, restart_schedules=True).train()
    found = rates(tmp_path / "run")
    assert found[5] < found[0] == found[6] == np.float32(3e-4)
    constant = MOVED | {"learning_rate_schedule": "constant"}
    PPOTrainer(compiled(), out=tmp_path / "same", preset=False, **constant).train()
    with pytest.raises(UserError, match="No schedule can begin again"):
        PPOTrainer.resume(tmp_path / "same", steps=64, restart_schedules=True)
