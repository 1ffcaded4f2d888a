"""What is tracked of infos, episode by episode: known numbers, whatever is missing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from proximo.envs.api import LaneStep, Timestep
from proximo.envs.groups import ONE
from proximo.rollout.episodes import Running, count_episodes, info_metrics, lacks_info, no_info

NAN = float("nan")


def step(info: list[list[float]], ends: list[bool], counts: list[bool], xp: Any) -> Timestep:
    """Of environments with one agent each, which pay nothing."""
    none, flags = xp.zeros(len(ends), xp.float32), xp.array(ends)
    lane = LaneStep(None, None, none, flags, xp.zeros(len(ends), bool), None, xp.array(counts))
    told = xp.array(info, xp.float32)
    return Timestep({ONE: lane}, flags, xp.full(len(ends), -1, xp.int8), info=told)


@pytest.mark.parametrize("xp", [np, jnp])
def test_the_last_value_and_the_mean_of_each_episode(xp: Any) -> None:
    """Environment 0 says 1, nothing, 4 of the first number: 4 at the end, 2.5 in the mean; of the second nothing but
    infinity. Environment 1 says 7 in a step that does not count, 3 and NaN: 3 and 3. Then environment 0 begins anew."""
    no = [False, False]
    steps = [
        step([[1, NAN], [7, 5]], no, [True, False], xp),
        step([[NAN, np.inf], [3, 6]], no, [True, True], xp),
        step([[4, -np.inf], [NAN, 8]], [True, True], [True, True], xp),
        step([[NAN, 2], [9, 9]], [True, False], [True, True], xp),
    ]
    told = no_info(2, 2, xp)
    running: Running = (xp.zeros(2, int), {ONE: xp.zeros((2, 1), xp.float32)}, told)
    found = []
    for moved in steps:
        running, episodes = count_episodes(running, moved, None, xp)
        found.append((np.asarray(episodes.info), np.asarray(episodes.info_mean)))
    np.testing.assert_array_equal(found[2][0], [[4, NAN], [3, 8]])
    np.testing.assert_array_equal(found[2][1], [[2.5, NAN], [3, 7]])
    np.testing.assert_array_equal(found[3][0][0], [NAN, 2])
    last, total, count = (np.asarray(part) for part in vars(running[2]).values())
    np.testing.assert_array_equal(last, [[NAN, NAN], [9, 9]])
    assert total.tolist() == [[0, 0], [9, 9]]
    assert count.tolist() == [[0, 0], [1, 1]]


def test_nothing_is_kept_where_nothing_is_tracked() -> None:
    assert no_info(3, 0) is None
    running: Running = (np.zeros(1, int), {ONE: np.zeros((1, 1), np.float32)}, None)
    after, episodes = count_episodes(running, step([[1.0]], [True], [True], np), None, np)
    assert (after[2], episodes.info, episodes.info_mean) == (None, None, None)


def test_names_and_what_is_said_of_those_that_are_not_there() -> None:
    assert info_metrics(["a", "b/c"]) == ["info/a", "info/b/c", "info_mean/a", "info_mean/b/c"]
    assert lacks_info([], ["a"], "Shop") == []
    assert lacks_info(["profit"], ["gain", "loss"], "Shop") == [
        "The info of Shop has had no 'profit' so far (track.info); its entries are 'gain', 'loss'."
    ]
    assert lacks_info(["profit"], [], "Shop")[0].endswith("so far (track.info); it is empty.")
    assert lacks_info(["x"], [f"n{i}" for i in range(23)], "Shop")[0].endswith("'n19' and 3 more.")
