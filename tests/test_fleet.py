"""A fleet: what it says of its runs, which slot takes which, and how one of them is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proximo import settings
from proximo.config import Config
from proximo.experiment.plan import make_plan, make_trials
from proximo.fleet.jobs import Advanced, Began, Ended, Event, Fleet, HandedIn, Job, Noted, RowReader
from proximo.fleet.local import LocalFleet
from proximo.run_dir.read import is_complete, read_status
from proximo.train.interrupt import Interrupt

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


def made(env: str, **others: Any) -> Config:
    return settings.build({"env.id": env}, settings.from_keywords(SHORT | others))


def words(events: list[Event], job: Job) -> list[str]:
    return [type(event).__name__ for event in events if event.job is job and not isinstance(event, Noted)]


def small_fleet(tmp_path: Path, count: int = 1, cores: list[int] | None = None) -> LocalFleet:
    return LocalFleet(count, tmp_path / "log", Interrupt(deaf=True), HandedIn(), cores)


def test_jobs_are_submitted_while_others_end_and_their_rows_are_told(tmp_path: Path) -> None:
    one, other = (Job(made(JAX, seed=seed), tmp_path / str(seed), True) for seed in (0, 1))
    events: list[Event] = []
    with small_fleet(tmp_path) as fleet:
        fleet.submit(one)
        for event in fleet.events():
            events.append(event)
            if isinstance(event, Ended) and event.job is one:
                fleet.submit(other)
    for job in (one, other):
        told = words(events, job)
        assert (told[0], told[-1], set(told[1:-1])) == ("Began", "Ended", {"Advanced"})
        rows = [row for event in events if isinstance(event, Advanced) and event.job is job for row in event.rows]
        assert [row["update"] for row in rows] == list(range(1, 13))
        assert is_complete(job.folder)
    ends = [event for event in events if isinstance(event, Ended)]
    assert [(event.job, event.end, event.sentence) for event in ends] == [
        (one, "complete", ""),
        (other, "complete", ""),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("env", [JAX, "CartPole-v1"], ids=["in a thread", "in a process"])
def test_a_job_that_is_cancelled_is_saved_and_others_go_on(env: str, tmp_path: Path) -> None:
    long = Job(made(env, total_timesteps=10**9), tmp_path / "long", env == JAX)
    waits = Job(made(env), tmp_path / "waits", env == JAX)
    short = Job(made(env), tmp_path / "short", env == JAX)
    events: list[Event] = []
    with small_fleet(tmp_path) as fleet:
        fleet.submit(long)
        for event in fleet.events():
            events.append(event)
            if isinstance(event, Began) and event.job is long:
                fleet.submit(waits)
                fleet.submit(short)
                fleet.cancel(waits)
            if isinstance(event, Advanced) and event.job is long:
                fleet.cancel(long)
        fleet.cancel(long)  # it has ended: nothing happens
    ends = {event.job.folder.name: event.end for event in events if isinstance(event, Ended)}
    assert ends == {"long": "interrupted", "waits": "interrupted", "short": "complete"}
    assert read_status(long.folder).state == "interrupted"
    assert not waits.folder.exists()


def test_a_fleet_that_is_left_early_saves_what_is_at_work(tmp_path: Path) -> None:
    long = Job(made(JAX, total_timesteps=10**9), tmp_path / "long", True)
    with small_fleet(tmp_path) as fleet:
        fleet.submit(long)
        next(event for event in fleet.events() if isinstance(event, Advanced))
    assert read_status(long.folder).state == "interrupted"


@pytest.mark.usefixtures("unchecked")
def test_slots_take_runs_of_the_program_they_have_and_share_the_rest(tmp_path: Path) -> None:
    grid = {"ppo.gamma": [0.9, 0.99], "ppo.epochs_per_update": [1, 2]}
    fleet = small_fleet(tmp_path, count=2)
    for run in make_plan([JAX], make_trials(None, grid, 2), {}, {}).runs:
        fleet.submit(Job(run.config, tmp_path / run.folder, True))
    taken: dict[int, list[int]] = {0: [], 1: []}
    last: dict[int, Job | None] = {0: None, 1: None}
    for turn in range(8):
        last[turn % 2] = job = fleet._take(last[turn % 2])
        assert job is not None
        taken[turn % 2].append(job.config.ppo.epochs_per_update)
    assert taken == {0: [1, 1, 1, 1], 1: [2, 2, 2, 2]}
    fleet.close()
    assert fleet._take(None) is None


@pytest.mark.parametrize(
    ("count", "shares"), [(1, [[0, 1, 2, 3, 4]]), (2, [[0, 1], [2, 3, 4]]), (7, [[0], [1], [2], [3], [4], [0], [1]])]
)
def test_processes_share_the_cores(tmp_path: Path, count: int, shares: list[list[int]]) -> None:
    fleet = small_fleet(tmp_path, count, [0, 1, 2, 3, 4])
    assert [fleet._share(slot) for slot in range(count)] == shares


def row(step: int) -> str:
    return json.dumps({"step": step}) + "\n"


def test_rows_are_read_as_they_come(tmp_path: Path) -> None:
    reader, file = RowReader(tmp_path), tmp_path / "metrics.jsonl"
    assert reader.read() == []
    file.write_text(row(1) + row(2) + '{"step"')
    assert reader.read() == [{"step": 1}, {"step": 2}]
    assert reader.read() == []
    file.write_text(row(1) + row(2) + row(3) + "no row\n[4]\n")
    assert reader.read() == [{"step": 3}]
    file.write_text(row(1))  # cut, by a run that goes on from there
    assert reader.read() == [{"step": 1}]


def test_the_seam_is_what_both_kinds_implement() -> None:
    assert Fleet.__abstractmethods__ == {"count", "submit", "cancel", "close", "_news", "_busy"}
