"""Counters and windows of a run: averages of the same length are compared, and claims of a goal are decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import Config
from proximo.envs.groups import ONE, Group, Groups, one_group
from proximo.rollout.types import Episodes
from proximo.settings import build
from proximo.train.program import UpdateReport
from proximo.train.progress import Progress

GROUPS = one_group(spaces.Discrete(2), spaces.Discrete(2))


def progress(saved: Any = None, **values: Any) -> Progress:
    small = {"env.num_envs": 2, "ppo.rollout_length": 4, "ppo.minibatch_size": 8, "track.recent_episodes": 3}
    config = build(small | {name.replace("__", "."): value for name, value in values.items()})
    return Progress(config, GROUPS, saved)


def report(returns: Any) -> UpdateReport:
    """An update in which episodes of one step with these returns finished."""
    returns = np.array([returns], np.float32)
    shape = returns.shape
    length: Any = np.ones(shape, int)
    success: Any = np.zeros(shape, bool)
    episodes = Episodes(length, returns, success, {ONE: returns[..., None]})
    watched = ("loss/total", "ppo/gradient_norm", "ppo/parameter_norm")
    valid: Any = np.int32(8)
    kl: Any = np.float32(0)
    return UpdateReport({name: np.float32(0) for name in watched}, episodes, valid, kl)


def add(one: Progress, *updates: Sequence[float]) -> list[dict[str, Any]]:
    one.start_training()
    one.start_chunk()
    return one.add([report(returns) for returns in updates], {})


def returns_of(one: Progress) -> tuple[float | None, float | None]:
    result = one.summary(None)
    return result["final_return"], result["best_return"]


def evaluation(mean: float | None, episodes: int = 10) -> dict[str, Any]:
    return {"return_mean": mean, "episodes": episodes}


def test_windows_that_are_not_full_are_no_best() -> None:
    """35 alone, then (35, 0, 1), (0, 1, 2), (1, 2, 6), (2, 6, 4): the best full window has 12, not 35."""
    one = progress()
    add(one, [35.0, 0.0])
    assert returns_of(one) == (17.5, 17.5)  # of all there are: nothing better is known
    add(one, [1.0, 2.0])
    assert returns_of(one) == (1, 12)
    add(one, [6.0], [4.0])
    assert returns_of(one) == (4, 12)


def test_returns_of_agents_have_the_names_of_those_agents() -> None:
    """Of two wolves and a hare, who comes first out of a compiled program, by the alphabet."""
    seen: spaces.Space[Any] = spaces.Discrete(2)
    wolves = Groups({"wolf": Group(("w_0", "w_1"), seen, seen), "hare": Group(("h",), seen, seen)}, many=True)
    members = {"wolf": np.array([[[1.0, 2.0]]]), "hare": np.array([[[6.0]]])}
    arrays: Any = (np.ones((1, 1), int), np.array([[3.0]]), np.ones((1, 1), bool), members)
    episodes = Episodes(*arrays)
    one = Progress(Config(), wolves)
    one.start_training()
    one.start_chunk()
    (row,) = one.add(
        [dataclasses.replace(report([0.0]), episodes=jax.device_get(jax.jit(lambda same: same)(episodes)))], {}
    )
    named = {name: row[f"recent/{name}/return_mean"] for name in ("agent/w_0", "agent/w_1", "agent/h", "group/wolf")}
    assert named == {"agent/w_0": 1, "agent/w_1": 2, "agent/h": 6, "group/wolf": 1.5}


def test_the_end_and_the_best_are_of_windows_of_one_length() -> None:
    """Whatever the goal's own window is, and whoever's returns it looks at."""
    for goal in ({"stop__convergence_window": 1}, {"stop__convergence_window": 50}, {"stop__on": "evaluation"}):
        one = progress(stop__target_reward=1e9, **goal)
        add(one, [9.0, 1.0, 2.0, 6.0])
        assert returns_of(one) == (3, 4), goal


def test_the_best_average_is_kept_by_a_checkpoint() -> None:
    one = progress()
    add(one, [9.0, 9.0, 9.0, 0.0])
    again = progress(one.saved())
    add(again, [0.0])
    assert returns_of(again) == (3, 9)


@pytest.mark.parametrize("scores", [[5.0, 5.0], [5.0, 4.0, 5.0]])
def test_of_equal_policies_the_later_is_the_best(scores: list[float]) -> None:
    one = progress()
    for score in scores:
        add(one, [0.0])
        best = one.note_score(score)
        assert best == (score == 5)
    assert (one.counters.best_score, one.counters.best_step) == (5, 8 * len(scores))
    assert not one.note_score(None)
    assert not one.note_score(float("nan"))


GOAL = {"stop__target_reward": 10.0, "stop__convergence_window": 2, "stop__early_stopping_patience": 1}


def test_a_claim_ends_a_chunk_and_not_the_run() -> None:
    one = progress(**GOAL)
    assert len(add(one, [3.0, 12.0], [12.0], [12.0])) == 2
    assert (one.claimed, one.stop_reason, one.summary(None)["converged"]) == (True, None, False)


def test_an_evaluation_confirms_a_claim() -> None:
    one, played = progress(**GOAL), evaluation(10.0)
    add(one, [12.0, 12.0])
    assert one.add_evaluation(played) == {"goal/training_return": 12, "goal/confirmed": 1}
    assert (one.stop_reason, one.counters.final_eval) == ("converged", played)
    assert one.summary(played)["converged"] is True
    assert not one.notices


def test_an_evaluation_refuses_a_claim_and_the_first_time_says_so() -> None:
    one = progress(**GOAL)
    for times in (1, 2):
        add(one, [12.0, 12.0])
        assert one.add_evaluation(evaluation(-500.0)) == {"goal/training_return": 12, "goal/confirmed": 0}
        assert (one.claimed, one.stop_reason, one.counters.final_eval) == (False, None, None)
        assert one.summary(None)["unconfirmed_goals"] == times
    assert one.notices == [
        "Not solved: after 8 steps the training return averaged 12 with sampled actions (the goal is 10), but an "
        "evaluation with deterministic actions averaged -500 over 10 episodes. Training goes on. Further such cases "
        "are counted, as unconfirmed_goals."
    ]


def test_a_claim_with_the_last_update_decides_how_the_run_ends() -> None:
    """The evaluation is the final one either way."""
    for mean, reason in ((9.0, "budget"), (11.0, "converged")):
        one = progress(**GOAL, train__total_timesteps=8)
        add(one, [12.0, 12.0])
        assert (one.claimed, one.stop_reason) == (True, "budget")
        one.add_evaluation(evaluation(mean))
        assert one.counters.final_eval is not None
        assert (one.stop_reason, one.counters.final_eval["return_mean"]) == (reason, mean)
    assert "Training goes on" not in "".join(one.notices)


def test_a_claim_that_was_not_decided_is_kept_by_a_checkpoint() -> None:
    one = progress(**GOAL)
    add(one, [12.0, 12.0])
    again = progress(one.saved(), **GOAL)
    assert (again.claimed, again.stop_reason) == (True, None)
    played = evaluation(11.0)
    again.add_evaluation(played)
    last = progress(again.saved(), **GOAL)
    assert (last.stop_reason, last.counters.final_eval) == ("converged", played)


def test_a_goal_that_was_reached_before_is_claimed_no_more() -> None:
    """What goes on beyond it is converged only if its own last evaluation says so."""
    one = progress(**GOAL)
    add(one, [12.0, 12.0])
    one.add_evaluation(evaluation(11.0))
    one.train_on()
    add(one, [12.0, 12.0])
    assert (one.claimed, one.stop_reason, one.counters.final_eval) == (False, None, None)
    assert [one.summary(evaluation(mean))["converged"] for mean in (9.0, 10.0, None)] == [False, True, False]


def test_evaluations_can_be_the_windows() -> None:
    one = progress(stop__target_reward=10.0, stop__on="evaluation", stop__early_stopping_patience=2)
    for mean in (11.0, None, 10.0):
        add(one, [99.0, 99.0, 99.0])
        assert not one.claimed
        assert one.add_evaluation(evaluation(mean)) == {}
        assert one.stop_reason is None
    played = evaluation(12.0)
    one.add_evaluation(played)
    assert (one.stop_reason, one.counters.final_eval, one.counters.unconfirmed) == ("converged", played, 0)


def test_nothing_is_claimed_without_a_goal() -> None:
    one = Progress(Config(), GROUPS)
    add(one, [1e9] * 200)
    assert not one.claimed


def test_what_is_tracked_of_infos_is_averaged_over_recent_episodes() -> None:
    """The last three episodes ended with 1, nothing and 5; in the mean over their steps they had 2, nothing and 4."""
    one = progress(track__info=("profit",))
    told = report([0.0, 7.0, 8.0, 9.0])
    ends, means = (np.array([[[9.0], [1.0], [np.nan], last]], np.float32) for last in ([5.0], [4.0]))
    means[0, 1] = 2.0
    episodes = dataclasses.replace(told.episodes, info=ends, info_mean=means)
    one.start_training()
    one.start_chunk()
    (row,) = one.add([dataclasses.replace(told, episodes=episodes)], {})
    assert (row["info/profit"], row["info_mean/profit"]) == (3.0, 3.0)
    heard = one.told_episodes(one.finished[0])
    assert heard[1] == {
        "return": 7.0,
        "length": 1,
        "success": False,
        "info": {"profit": 1.0},
        "info_mean": {"profit": 2.0},
    }
    assert heard[2]["info"] == {"profit": None}
    again = progress(one.saved(), track__info=("profit",))
    again.start_chunk()
    (row,) = again.add(
        [dataclasses.replace(told, episodes=dataclasses.replace(episodes, length=0 * told.episodes.length))], {}
    )
    assert row["info/profit"] == 3.0, "it goes on after a resume"
