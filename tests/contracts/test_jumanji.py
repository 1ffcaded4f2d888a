"""The Jumanji adapter: the contract on every environment, masks of every layout, ends, final observations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
import pytest
from gymnasium import spaces
from jumanji import specs
from jumanji.environments.logic.minesweeper.env import Minesweeper
from jumanji.environments.packing.bin_pack.env import BinPack
from jumanji.environments.packing.job_shop.env import JobShop
from jumanji.environments.routing.lbf.env import LevelBasedForaging
from jumanji.environments.routing.maze.env import Maze
from jumanji.environments.routing.maze.generator import Generator
from jumanji.environments.routing.maze.types import Position, State
from jumanji.environments.routing.snake.env import Snake
from jumanji.testing.fakes import FakeEnvironment
from jumanji.wrappers import AutoResetWrapper, MultiToSingleWrapper, VmapWrapper, Wrapper

from contracts.compiled import check_contract, lanes
from made import jax_env
from proximo import PPOTrainer
from proximo.envs.api import LaneStep
from proximo.envs.compiled.foreign import lenient
from proximo.envs.compiled.jumanji import PER_AGENT, _actions, _places, names
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.errors import UserError

DOWNLOADS = {"Sokoban-v0"}
SOME = {"Maze-v0", "Snake-v1", "JobShop-v0", "Minesweeper-v0"}
IDS = [name for name in names() if name not in DOWNLOADS]
EACH = [pytest.param(name, marks=pytest.mark.slow if name in SOME else pytest.mark.learning) for name in IDS]


@pytest.mark.parametrize("name", EACH)
def test_contract(name: str) -> None:
    check_contract(jax_env(f"jumanji/{name}"))


@pytest.mark.learning
@pytest.mark.parametrize("name", IDS)
def test_every_environment_trains(name: str, tmp_path: Path) -> None:
    result = train(f"jumanji/{name}", tmp_path)
    assert result["total_steps"] == 192
    assert result["final_eval"]["length_mean"] <= 20


def train(env: Any, folder: Path) -> dict[str, Any]:
    """Three updates."""
    trainer = PPOTrainer(
        env=env,
        preset=False,
        out=folder / "run",
        num_envs=4,
        rollout_length=16,
        minibatch_size=32,
        epochs_per_update=2,
        total_timesteps=192,
        eval_frequency=0,
        eval_episodes=2,
        max_steps_per_episode=20,
    )
    return trainer.train()


class Judge(Wrapper[Any, Any, Any]):
    """Rewards -1 for an action that the mask, in Jumanji's own layout, did not allow, and 0 for others."""

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, first = self._env.reset(key)
        return (state, first.observation.action_mask), first

    def step(self, state: Any, action: Any) -> tuple[Any, Any]:
        state, mask = state
        if self._env.action_spec.shape and mask.shape == tuple(self._env.action_spec.num_values.tolist()):
            legal = mask[tuple(action)]
        else:
            legal = jnp.take_along_axis(mask, action[..., None], axis=-1).all()
        state, moved = self._env.step(state, action)
        moved.reward = jnp.where(legal, 0.0, -1.0)
        return (state, moved.observation.action_mask), moved


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "space"),
    [
        pytest.param(Minesweeper, spaces.Discrete(100, dtype=np.int32), marks=pytest.mark.learning),
        (JobShop, spaces.MultiDiscrete([21] * 10, dtype=np.int32)),
        pytest.param(Maze, spaces.Discrete(4, dtype=np.int32), marks=pytest.mark.learning),
        pytest.param(BinPack, spaces.Discrete(800, dtype=np.int32), marks=pytest.mark.learning),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_no_illegal_action_in_a_whole_training(env: Any, space: spaces.Space[Any], tmp_path: Path) -> None:
    judged = jax_env(Judge(env()))
    assert judged.spec.action_space == space
    result = train(judged, tmp_path)
    assert worst_reward(tmp_path) == 0
    assert result["final_eval"]["return_min"] == 0


def worst_reward(folder: Path) -> float:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(line)["buffer/reward_min"] for line in lines]
    assert len(rewards) == 3
    return float(min(rewards))


@pytest.mark.slow
def test_a_choice_among_pairs_is_taken_apart() -> None:
    """Number 37 of 10 x 10 is row 3, column 7: the cell that the board shows uncovered. Once more is illegal."""
    env = jax_env(Judge(Minesweeper()))
    state, first = env.reset(jax.random.key(0))
    assert first.action_mask.all()
    state, moved = env.step(jax.random.key(1), state, jnp.int32(37))
    assert np.argwhere(moved.obs["board"] != -1).tolist() == [[3, 7]]
    assert np.flatnonzero(~moved.action_mask).tolist() == [37]
    assert moved.reward == 0
    _, moved = env.step(jax.random.key(1), state, jnp.int32(37))
    assert moved.reward == -1


def random_return(env_id: str, num_envs: int = 64, steps: int = 16_000) -> float:
    """The mean return of episodes in which every allowed action is as likely as any other."""
    copies = VectorizedEnv(jax_env(env_id), num_envs)

    def one(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        state, mask, returned = carry
        action = jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))
        state, moved = copies.step(jax.random.fold_in(key, 1), state, {ONE: action.astype(jnp.int32)})
        now = lanes(moved)
        returned += now.reward
        return (state, now.action_mask, jnp.where(now.ended, 0.0, returned)), (returned, now.ended)

    @jax.jit
    def play(key: jax.Array) -> Any:
        state, first = copies.reset(key)
        start = (state, lanes(first).action_mask, jnp.zeros(num_envs))
        return jax.lax.scan(one, start, jax.random.split(key, steps))[1]

    returned, ended = jax.device_get(play(jax.random.key(0)))
    return float(returned[ended].mean())


def learned(name: str, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """The mean return of the episodes that end in the last tenth of the steps of its preset; and the result."""
    trainer = PPOTrainer(env=f"jumanji/{name}", out=folder, eval_frequency=0, **settings)
    result = trainer.train()
    updates = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    late = [now for now in updates if now["step"] > 0.9 * result["total_steps"] and now["rollout/episodes"]]
    mean = np.average([n["rollout/return_mean"] for n in late], weights=[n["rollout/episodes"] for n in late])
    print(f"{name}: learned {mean:.2f}, {result['final_eval']}; {result['wall_seconds']:.0f} s")
    return mean, result


@pytest.mark.learning
def test_snake_learns_well_beyond_random(tmp_path: Path) -> None:
    assert learned("Snake-v1", tmp_path)[0] >= 2 * random_return("jumanji/Snake-v1")


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1])
def test_most_mazes_are_solved(seed: int, tmp_path: Path) -> None:
    """Actions that are drawn, and the most likely ones, which go round in circles where they are wrong."""
    drawn, result = learned("Maze-v0", tmp_path, seed=seed, eval_episodes=200)
    assert drawn >= 0.85
    assert result["final_eval"]["return_mean"] >= 0.75
    assert random_return("jumanji/Maze-v0") <= 0.35


def discrete(*num: int) -> Any:
    return specs.MultiDiscreteArray(jnp.array(num, jnp.int32)) if len(num) > 1 else specs.DiscreteArray(num[0])


def test_layouts_of_masks() -> None:
    def found(spec: Any, mask: Any) -> tuple[Any, str]:
        choices, space = _actions(spec, mask, "x")
        return choices, str(space)

    assert found(discrete(3), (3,)) == (None, "Discrete(3, dtype=int32)")
    assert found(discrete(40, 20), (40, 20)) == ((40, 20), "Discrete(800, dtype=int32)")
    assert found(discrete(5, 5, 5), (3, 5)) == (None, "MultiDiscrete([5 5 5])")
    assert found(discrete(5, 4), None) == (None, "MultiDiscrete([5 4])")
    # MultiCVRP: values 0 to 21 declared, flags for 0 to 20.
    assert found(specs.BoundedArray((2,), jnp.int16, 0, 21), (2, 21)) == (None, "MultiDiscrete([21 21])")
    with pytest.raises(UserError, match=r"mask of the shape \(7,\), which has neither"):
        found(discrete(3), (7,))
    with pytest.raises(UserError, match=r"mask of the shape \(2,\), which has neither"):
        found(specs.BoundedArray((2,), jnp.float32, -1.0, 1.0), (2,))
    with pytest.raises(UserError, match="can be read as one flag per value"):
        found(discrete(2, 2), (2, 2))


def entries(env_id: str) -> spaces.Dict:
    """What is seen of an environment."""
    space = jax_env(env_id).spec.observation_space
    assert isinstance(space, spaces.Dict)
    return space


def test_observations_keep_names_types_and_bounds() -> None:
    puzzle = entries("jumanji/SlidingTilePuzzle-v0")
    assert set(puzzle) == {"puzzle", "empty_tile_position", "step_count"}
    assert puzzle["empty_tile_position"] == spaces.Box(0, 4, (2,), np.int32)
    maze = entries("jumanji/Maze-v0")
    assert set(maze) == {"view", "step_count"}
    assert maze["view"] == spaces.Box(0, 1, (19, 19, 3), np.int8)
    assert maze["step_count"] == spaces.Box(0, 100, (), np.int32)  # Jumanji says: any number
    snake = entries("jumanji/Snake-v1")
    assert snake["grid"] == spaces.Box(0.0, 1.0, (12, 12, 5), np.float32)
    assert snake["step_count"] == spaces.Box(0, 4000, (), np.int32)  # Jumanji says: 4,000 categories
    assert entries("jumanji/TSP-v1")["position"] == spaces.Discrete(20, dtype=np.int32)
    game = entries("jumanji/Game2048-v1")["board"]
    assert game == spaces.Box(-(2**31), 2**31 - 1, (4, 4), np.int32)


class TwoRows(Generator):
    """Two rows of three cells: A the agent, # a wall, T the target.

    A # .
    . . T
    """

    def __init__(self) -> None:
        super().__init__(num_rows=2, num_cols=3)

    def __call__(self, key: jax.Array) -> State:
        return State(
            agent_position=Position(jnp.int32(0), jnp.int32(0)),
            target_position=Position(jnp.int32(1), jnp.int32(2)),
            walls=jnp.array([[False, True, False], [False, False, False]]),
            action_mask=None,
            key=key,
            step_count=jnp.int32(0),
        )


@pytest.mark.slow
def test_a_grid_is_seen_with_the_agent_in_the_middle() -> None:
    """Of 2 x 3 cells, the view has 3 x 5, and the agent at row 1, column 2; nothing is inside the grid above it or to
    its left, until it went down and to the right."""
    env = jax_env(Maze(TwoRows()))
    assert isinstance(env.spec.observation_space, spaces.Dict)
    assert env.spec.observation_space["view"].shape == (3, 5, 3)
    state, first = env.reset(jax.random.key(0))
    walls, inside, target = np.moveaxis(first.obs["view"], -1, 0).tolist()
    assert walls == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert inside == [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert target == [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    state, _ = env.step(jax.random.key(0), state, jnp.int32(2))
    state, moved = env.step(jax.random.key(0), state, jnp.int32(1))
    walls, inside, target = np.moveaxis(moved.obs["view"], -1, 0).tolist()
    assert walls == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert inside == [[0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    assert target == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert moved.obs["step_count"] == 2


def test_positions_that_do_not_fit_a_grid_stay_as_they_are() -> None:
    def position(rows: int, cols: int) -> spaces.Dict:
        return spaces.Dict({"row": spaces.Box(0, rows - 1, (), np.int32), "col": spaces.Box(0, cols - 1, (), np.int32)})

    def found(**entries: Any) -> Any:
        return _places(spaces.Dict(entries))

    flags, numbers = spaces.Box(0, 1, (2, 3), np.int8), spaces.Box(0, 5, (2, 3), np.int32)
    assert found(walls=flags, agent_position=position(2, 3)) == ("walls", [])
    assert found(walls=flags, agent_position=position(2, 3), exit=position(2, 3)) == ("walls", ["exit"])
    assert found(walls=flags, agent_position=position(2, 3), exit=position(4, 4)) == ("walls", [])
    assert found(walls=flags, agent_position=position(3, 2)) is None
    assert found(walls=flags, exit=position(2, 3)) is None
    assert found(board=numbers, agent_position=position(2, 3)) is None
    assert _places(flags) is None


def test_an_observation_that_is_one_array() -> None:
    env = jax_env(FakeEnvironment(time_limit=3))
    assert isinstance(env.spec.observation_space, spaces.Box)
    _, first = env.reset(jax.random.key(0))
    assert first.obs.shape == env.spec.observation_space.shape
    assert first.action_mask is None


def run(env: Any, act: Callable[[LaneStep], Any], steps: int) -> list[LaneStep]:
    """What one environment reports, step by step; `act` gives the action from the last."""
    vector = VectorizedEnv(jax_env(env), 1)
    state, now = vector.reset(jax.random.key(0))
    step, seen = jax.jit(vector.step), [lanes(now)]
    for number in range(steps):
        state, now = step(jax.random.key(number), state, {ONE: jnp.asarray([act(seen[-1])])})
        seen.append(lanes(now))
    found: list[LaneStep] = jax.device_get(seen)
    return found


@pytest.mark.slow
def test_final_observations_are_those_of_jumanji_itself() -> None:
    """A snake that goes on to the right runs into the wall; Jumanji, stepped by hand, shows the same until there."""
    env = Snake()
    seen = run(env, lambda _: 1, 12)
    with lenient():
        state, step = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 1)[0])
        by_hand = jax.jit(env.step)
        for now in seen[1:]:
            state, step = by_hand(state, jnp.int32(1))
            np.testing.assert_array_equal(now.final_obs["grid"][0], step.observation.grid)
            assert now.terminated[0] == step.last()
            if step.last():
                break
    assert step.last()
    assert now.obs["step_count"] == 0
    assert now.final_obs["step_count"] == step.observation.step_count > 0
    assert not now.truncated


def ends(seen: list[LaneStep]) -> list[tuple[bool, bool]]:
    return [(bool(now.terminated[0]), bool(now.truncated[0])) for now in seen]


@pytest.mark.slow
def test_time_limits_are_ends_where_jumanji_gives_them_no_future() -> None:
    snake = run(Snake(time_limit=3), lambda now: jnp.argmax(now.action_mask[0]), 3)
    assert ends(snake) == [(False, False)] * 3 + [(True, False)]
    assert snake[-1].final_obs["step_count"] == 3
    assert snake[-1].obs["step_count"] == 0


class GoesOn(Wrapper[Any, Any, Any]):
    """Ends with a discount that says that something could follow."""

    def step(self, state: Any, action: Any) -> tuple[Any, Any]:
        state, moved = self._env.step(state, action)
        moved.discount = jnp.float32(0.5)
        return state, moved


@pytest.mark.slow
def test_ends_with_a_future_are_cuts() -> None:
    fake = FakeEnvironment(time_limit=2)
    still = jnp.zeros(fake.action_spec.shape)
    assert ends(run(fake, lambda _: still, 2)) == [(False, False)] * 2 + [(True, False)]
    assert ends(run(GoesOn(fake), lambda _: still, 2)) == [(False, False)] * 2 + [(False, True)]


@pytest.mark.learning
def test_foraging_is_cut_by_its_time_limit() -> None:
    seen = run(MultiToSingleWrapper(LevelBasedForaging(time_limit=2)), lambda _: [0, 0], 2)
    assert ends(seen) == [(False, False)] * 2 + [(False, True)]
    assert seen[-1].action_mask.shape == (1, 12)


@pytest.mark.parametrize("name", sorted(PER_AGENT))
def test_rewards_per_agent_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"jumanji/{name} rewards each of its \d+ agents by itself"):
        jax_env(f"jumanji/{name}")
    assert name not in names()
    with lenient():
        summed = MultiToSingleWrapper(jumanji.registration.make(name))
    assert jax_env(summed).spec.id == f"jumanji/{name[: name.index('-')]}"


@pytest.mark.parametrize("wrapper", [AutoResetWrapper, VmapWrapper])
def test_wrappers_that_reset_or_copy_are_refused(wrapper: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match=f"without {wrapper.__name__}"):
        jax_env(wrapper(Maze()))


def test_a_missing_environment_is_named() -> None:
    with pytest.raises(UserError, match="did you mean jumanji/Maze-v0"):
        jax_env("jumanji/Maze-v1")


@pytest.mark.slow
def test_data_that_cannot_be_downloaded_gives_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise FileNotFoundError("no network")

    monkeypatch.setattr("jumanji.registration.make", fail)
    with pytest.raises(UserError, match="jumanji/Sokoban-v0 needs data that it downloads"):
        jax_env("jumanji/Sokoban-v0")
