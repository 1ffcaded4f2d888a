"""When something is due in a run: numbers worked out by hand. An update has 8 steps."""

from __future__ import annotations

from typing import Any

import pytest

from proximo.settings import build
from proximo.train.counters import Counters
from proximo.train.schedule import Schedule


def schedule(updates: int = 20, **values: Any) -> Schedule:
    given = {"env.num_envs": 2, "ppo.rollout_length": 4, "ppo.minibatch_size": 8, "train.total_timesteps": 8 * updates}
    return Schedule(build(given | {name.replace("__", "."): value for name, value in values.items()}))


@pytest.mark.parametrize(("updates", "wait"), [(0, 5), (5, 1), (6, 1), (7, 3), (10, 2), (13, 2), (19, 1), (20, 1)])
def test_a_chunk_ends_where_something_is_due(updates: int, wait: int) -> None:
    """Evaluations after 6, 12, 18; checkpoints after 5, 10, 15, 20; policies after 7, 13, 20; the end after 20, and
    where filler steps were not counted, later."""
    one = schedule(eval__frequency=6, checkpoint__every_steps=40, checkpoint__num_checkpoints=3)
    assert one.updates_until_event(Counters(updates=updates, steps=8 * updates)) == wait


def test_evaluations_are_due_every_so_many_updates() -> None:
    assert [update for update in range(1, 21) if schedule(eval__frequency=6).evaluation_due(update)] == [6, 12, 18]
    assert not any(map(schedule(eval__frequency=0).evaluation_due, range(21)))


def test_without_evaluations_the_policy_is_judged_twenty_times() -> None:
    one = schedule(100, eval__frequency=0)
    assert [update for update in range(1, 101) if one.score_due(update)] == list(range(5, 101, 5))
    assert not any(map(schedule(100, eval__frequency=7).score_due, range(101)))


def test_policies_are_spread_evenly_over_the_run() -> None:
    """20 / 3 = 6.67, 13.33, 20; of more policies than updates there is one for each update."""
    one = schedule(checkpoint__num_checkpoints=3)
    due = {update: one.policies_due(update) for update in range(21) if one.policies_due(update)}
    assert due == {7: ["pi_ckpt1"], 13: ["pi_ckpt2"], 20: ["pi_ckpt3"]}
    assert schedule(2, checkpoint__num_checkpoints=5).policy_updates() == [1, 2]
    assert schedule(checkpoint__num_checkpoints=0).policy_updates() == []


def test_checkpoints_are_due_when_a_multiple_of_their_steps_was_passed() -> None:
    one = schedule(checkpoint__every_steps=40)
    assert [one.checkpoint_due(steps, 40) for steps in (40, 72, 80, 88)] == [False, False, True, True]
    assert not one.checkpoint_due(88, 80)
    assert not schedule(checkpoint__every_steps=None).checkpoint_due(10**9, 0)
