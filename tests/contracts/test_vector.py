"""The adapter of vector environments: the contract, in each mode of resetting, of each library."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import host_probes
import probes
import vector_probes
from contracts.host import ENVS, check_contract, check_restoring, exchange, lanes, received, record, same
from made import host_source
from proximo import PPOTrainer
from proximo.config import EnvConfig
from proximo.envs.api import HostSource, Timestep, with_info
from proximo.envs.groups import ONE
from proximo.envs.host.vector import VectorSource
from proximo.envs.host.vector_batch import FirstOf, VectorCamera
from proximo.errors import EnvError, UserError
from proximo.multi_agent.team_agent import make_agents
from proximo.rollout.video import episode_frames
from proximo.settings import build
from vector_probes import Counters, Saving, Wrong

MODES = list(AutoresetMode)
LIMITED = EnvConfig(max_steps_per_episode=7)
stable_baselines3 = functools.partial(pytest.importorskip, "stable_baselines3.common.vec_env")


def sync(env: Any, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    return lambda num_envs: SyncVectorEnv([env] * num_envs, autoreset_mode=mode)


def vector_source(env: Any) -> VectorSource:
    source = host_source(env)
    assert isinstance(source, VectorSource)
    return source


def dummy(env: Any) -> Any:
    return lambda num_envs: stable_baselines3().DummyVecEnv([env] * num_envs)


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1")


@pytest.mark.parametrize("mode", MODES)
def test_contract_of_gymnasium(mode: AutoresetMode) -> None:
    check_contract(vector_source(sync(pendulum, mode)), LIMITED, steps=40)


def test_contract_of_a_registered_one() -> None:
    source = vector_source("vector/CartPole-v1")
    assert source.spec.max_steps == 500
    check_contract(source, LIMITED, steps=40)


def in_processes(num_envs: int) -> Any:
    """Which know nothing of this module, so that they start soon."""
    return AsyncVectorEnv([functools.partial(gymnasium.make, "Pendulum-v1")] * num_envs, context="forkserver")


@pytest.mark.slow
def test_contract_in_processes() -> None:
    check_contract(vector_source(in_processes), LIMITED, steps=20)


@pytest.mark.slow
def test_contract_of_stable_baselines3() -> None:
    check_contract(vector_source(dummy(pendulum)), LIMITED, steps=40)


@pytest.mark.slow
def test_contract_of_atari() -> None:
    pytest.importorskip("ale_py")
    check_contract(vector_source("vector/ALE/Pong-v5"), LIMITED, steps=16, seeded=False)


def without_fillers(played: tuple[Timestep, Timestep]) -> list[Any]:
    """Of each environment what its steps reported that count."""
    rest, whole = lanes(played[1]), played[1]
    final = np.where((rest.terminated | rest.truncated)[..., None], rest.final_obs, 0)
    success = np.where(whole.reset, whole.success, 0)
    fields = (rest.reward, rest.terminated, rest.truncated, final, whole.reset, success)
    return [[field[rest.valid[:, env], env][:20] for field in fields] for env in range(ENVS)]


def walked(source: HostSource) -> list[Any]:
    """`Walk`, always up: it ends in the fourth step, or is cut where only up is allowed every third time."""
    env = source.open_envs(ENVS, EnvConfig(workers=0))
    begun = jax.tree.map(np.copy, env.reset(3))
    played = []
    for _ in range(60):
        exchange(env, np.ones(ENVS, np.int64))
        played.append(received(env))
    env.close()
    return without_fillers((begun, jax.tree.map(lambda *leaves: np.stack(leaves), *played)))


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_tells_what_single_environments_tell(mode: AutoresetMode) -> None:
    assert same(walked(vector_source(sync(host_probes.Walk, mode))), walked(host_source(host_probes.Walk)))


@pytest.mark.slow
def test_stable_baselines3_tells_what_single_environments_tell() -> None:
    assert same(walked(vector_source(dummy(host_probes.Walk))), walked(host_source(host_probes.Walk)))


def counted(env: Any, steps: int = 6, config: EnvConfig = EnvConfig()) -> tuple[Timestep, Timestep]:  # noqa: B008
    """Steps of two `Counters`, in which always 1 is done."""
    opened = vector_source(env).open_envs(2, config)
    begun = jax.tree.map(np.copy, opened.reset(0))
    played = []
    for _ in range(steps):
        opened.send(0, {ONE: np.ones(2, np.int64)})
        played.append(jax.tree.map(np.copy, opened.recv(0)))
    opened.close()
    return begun, jax.tree.map(lambda *leaves: np.stack(leaves), *played)


@pytest.mark.parametrize(("mode", "final"), [(mode, "arrays") for mode in MODES] + [(AutoresetMode.SAME_STEP, "rows")])
def test_a_simulator_of_ones_own(mode: AutoresetMode, final: str) -> None:
    """The first environment is cut after three steps, the second terminates after four. Their seeds are 10,000 and
    10,001, so that they begin at 0 and at 0.001."""
    begun, moved = counted(lambda num_envs: Counters(num_envs, mode, final))
    rest, waits = lanes(moved), mode is AutoresetMode.NEXT_STEP
    np.testing.assert_array_equal(lanes(begun).obs["count"], np.array([[0], [0.001]], np.float32))
    np.testing.assert_array_equal(lanes(begun).action_mask, [[False, True]] * 2)
    np.testing.assert_array_equal(begun.critic_state, np.array([[0], [0.001]], np.float32))
    assert rest.truncated[:4, 0].tolist() == [False, False, True, False]
    assert rest.terminated[:4, 1].tolist() == [False, False, False, True]
    np.testing.assert_allclose(rest.final_obs["count"][2, 0], [3])
    np.testing.assert_allclose(rest.final_obs["count"][3, 1], [4.001])
    np.testing.assert_allclose(moved.final_critic_state[3, 1], [0.001])
    assert moved.success[2, 0] == 1
    assert moved.success[3, 1] == 0
    assert (moved.success[[0, 1, 2], 1] == -1).all()
    np.testing.assert_allclose(rest.obs["count"][2:4, 0, 0], [3, 0] if waits else [0, 1])
    assert rest.valid[3, 0] == (not waits)
    assert rest.reward[:4, 0].tolist() == [1, 1, 1, 0 if waits else 1]
    # Only 1 is allowed where an episode begins.
    assert rest.action_mask[3 if waits else 2, 0].tolist() == [False, True]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_cut(mode: AutoresetMode) -> None:
    """After two steps. Those of the first mode begin anew, since nothing else resets them; others cannot be reset
    alone, so that they go on, and come to their own ends."""
    env = lambda num_envs: Counters(num_envs, mode)  # noqa: E731
    opened = vector_source(env).open_envs(2, EnvConfig(max_steps_per_episode=2))
    _, moved = counted(env, 2, EnvConfig(max_steps_per_episode=2))
    rest = lanes(moved)
    assert rest.truncated.tolist() == [[False, False], [True, True]]
    np.testing.assert_allclose(rest.final_obs["count"][1, :, 0], [2, 2.001])
    np.testing.assert_allclose(rest.obs["count"][1, :, 0], [0, 0.001] if mode is AutoresetMode.DISABLED else [2, 2.001])
    opened.reset(0)
    for _ in range(2):
        opened.send(0, {ONE: np.ones(2, np.int64)})
        opened.recv(0)
    said = [notice for notice in opened.notices if "cannot reset one of its environments alone" in notice]
    assert len(said) == (mode is not AutoresetMode.DISABLED)


def test_fewer_environments_than_an_object_has() -> None:
    """An evaluation of two episodes needs two; the others do as the first."""
    source = vector_source(Counters(5))
    assert source.num_envs == 5
    opened = source.open_envs(2, EnvConfig())
    opened.reset(0)
    opened.send(0, {ONE: np.ones(2, np.int64)})
    np.testing.assert_allclose(lanes(opened.recv(0)).obs["count"][:, 0], [1, 1.001])
    with pytest.raises(UserError, match=r"has 5 environments, and env\.num_envs=6"):
        source.open_envs(6, EnvConfig())


# Where environments stand.


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [sync(pendulum), sync(host_probes.Noisy, AutoresetMode.SAME_STEP), "vector/CartPole-v1", Counters],
    ids=["pendulum", "noisy", "registered", "own"],
)
def test_restoring_by_replay(env: Any) -> None:
    check_restoring(vector_source(env), LIMITED, steps=20)


def test_what_no_seed_sets_is_not_restored() -> None:
    class Unseeded(Counters):
        def reset(self, **given: Any) -> Any:
            found = super().reset(**given)
            self.seed = np.random.default_rng().random(self.num_envs)
            return self._seen(), found[1]

    source = vector_source(Unseeded)
    env, other = source.open_envs(2, EnvConfig()), source.open_envs(2, EnvConfig())
    env.reset(3), other.reset(3)
    states: Any = env.get_states()
    assert not other.set_states(states)
    assert "the same seed and the same 0 actions lead number 0 somewhere else" in other.notices[0]


def test_a_simulator_says_where_it_is() -> None:
    """Its episodes draw on what no seed sets, so that a replay would not do."""
    source = vector_source(Saving)
    env, other = source.open_envs(4, LIMITED), source.open_envs(4, LIMITED)
    env.reset(3), other.reset(8)
    record(env, 9)
    states: Any = env.get_states()
    assert other.set_states(states), other.notices
    for _ in range(2):  # after which the first draws a new number
        action = np.ones(4, np.int64)
        exchange(env, action)
        exchange(other, action)
        assert same(received(env).groups, received(other).groups)


def test_long_runs_are_not_replayed() -> None:
    env = vector_source(Counters).open_envs(2, EnvConfig(replay_limit=3))
    env.reset(0)
    for _ in range(4):
        env.send(0, {ONE: np.ones(2, np.int64)})
        env.recv(0)
    states: Any = env.get_states()
    assert not env.set_states(states)
    assert "longer than the 3 steps that are replayed" in env.notices[0]


# One object for all.


def test_an_object_that_cannot_be_copied_is_used_by_turns() -> None:
    """Who comes back to it begins new episodes, in a step that counts for nothing."""
    vector = Counters(2)
    vector.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    source = vector_source(vector)
    assert "cannot be copied, so evaluations use it too" in source.notices[0]
    one, other = source.open_envs(2, EnvConfig()), source.open_envs(1, EnvConfig())
    one.reset(0)
    one.send(0, {ONE: np.ones(2, np.int64)})
    one.recv(0)
    assert None not in one.get_states()
    other.reset(5)
    assert one.get_states() == [None, None]
    one.send(0, {ONE: np.ones(2, np.int64)})
    moved = one.recv(0)
    rest = lanes(moved)
    assert not rest.valid.any()
    assert rest.truncated.all()
    assert moved.reset.all()
    assert (rest.reward == 0).all()
    np.testing.assert_allclose(
        rest.obs["count"][:, 0] % 1, (10_000 + 1_000_003 + np.arange(2)) % 1000 / 1000, rtol=1e-5
    )
    one.send(0, {ONE: np.ones(2, np.int64)})
    assert lanes(one.recv(0)).valid.all()
    one.close()
    other.close()
    assert vector.closed_times == 0, "it is the user's"


def test_objects_are_made_again_as_they_were_made() -> None:
    made = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": "SameStep"})
    source = vector_source(made)
    assert (source.spec.id, source.num_envs, source.spec.max_steps, source.notices) == ("CartPole-v1", 3, 500, [])
    one, other = source.open_envs(3, EnvConfig()), source.open_envs(2, EnvConfig())
    first = np.array(lanes(one.reset(0)).obs)
    lanes(other.reset(1))
    np.testing.assert_array_equal(first, lanes(one.reset(0)).obs)
    one.close()
    other.close()


# What is refused, and how it is said.


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("array", r"Wrong does not keep to its observation space: its reset gave a ndarray .* with \['count'\]"),
        ("entry", r"Wrong does not keep to its observation space: its reset gave a dictionary with \[\]"),
        ("rewards", r"Wrong \(step 1\) failed: the reward must be one for each of 3 .*; a wrapper can weigh and add"),
        ("nan", r"Wrong \(number 1, step 1\) failed: observation\['count'\] is nan at the index \[0\]"),
        ("raises", r"Wrong \(step 1\) failed: RuntimeError: the wheel came off"),
    ],
)
def test_faults_are_named_before_training(how: str, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        vector_source(Wrong(3, how))


def test_a_fault_on_the_way() -> None:
    env = vector_source(Wrong(2, "final")).open_envs(2, EnvConfig())
    env.reset(0)
    with pytest.raises(EnvError, match=r"\(step 3\) failed: its autoreset_mode is SAME_STEP, and info has no entry"):
        record(env, 5)


def several(num_envs: int) -> Any:
    vector = Counters(num_envs)
    vector.reward_space = gymnasium.spaces.Box(0, 1, (3,))  # type: ignore[attr-defined]
    return vector


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Wrong(2, "mode"), r'metadata\["autoreset_mode"\] must be one of .*, not None'),
        (several, "gives 3 rewards at each step"),
        (lambda num_envs: Counters(2), "was asked for 1 environments, and made 2"),
        (lambda num_envs: gymnasium.make("CartPole-v1"), "must return a gymnasium.vector.VectorEnv"),
        ("vector/Acrobot-v1", "is not registered with a vector_entry_point; train on Acrobot-v1"),
        ("vector/CartPol-v1", "did you mean vector/CartPole-v1"),
        ("vector/no_such_module:Some-v0", "No module named 'no_such_module'"),
    ],
)
def test_what_is_no_vector_environment(env: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        vector_source(env)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workers": 2}, r"steps its environments itself, so that env\.workers=2 has no effect"),
        ({"on_error": "restart"}, r"env\.on_error=stop"),
    ],
)
def test_settings_that_have_no_effect(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        vector_source(Counters(2)).open_envs(2, EnvConfig(**settings))


def test_arguments_and_wrappers() -> None:
    source: Any = probes_source(Counters, {"mode": AutoresetMode.DISABLED})
    assert source.open_envs(2, EnvConfig()).reset(0) is not None
    wrapped: Any = probes_source(sync(pendulum), None, ["gymnasium.wrappers.vector:FlattenObservation"])
    assert wrapped.spec.observation_space.shape == (3,)
    with pytest.raises(UserError, match=r"vector/CartPole-v1 cannot be made with env\.kwargs"):
        probes_source("vector/CartPole-v1", {"lenght": 2})
    with pytest.raises(UserError, match=r"is made already, and takes no env\.kwargs"):
        probes_source(Counters(2), {"lenght": 2})


def probes_source(env: Any, kwargs: Any = None, wrappers: Any = ()) -> Any:
    from proximo import envs

    return envs.make(env, kwargs, wrappers)


def test_a_factory_without_a_number_has_its_own() -> None:
    assert vector_source(lambda: Counters(3)).num_envs == 3
    assert pickle.loads(pickle.dumps(vector_probes.Counters)) is Counters


class Drawn:
    """Shows how often it was drawn, in the first of two pictures."""

    times = 0

    def render(self) -> Any:
        self.times += 1
        return np.full((2, 2, 3), self.times, np.uint8), np.zeros((2, 2, 3), np.uint8)


@pytest.mark.parametrize(("stays", "expected"), [(True, [1, 2, 3, 3]), (False, [1, 2, 2, 3])])
def test_pictures_of_an_end(stays: bool, expected: list[int]) -> None:
    """A reset, a step, and one that ends the episode: two pictures, of the end and of the next beginning. Where that
    has begun already, the last picture stands for the end."""
    camera = VectorCamera(FirstOf(Drawn(), shared=False), "Drawn")
    camera.take()
    camera.follow(False, stays)
    camera.follow(True, stays)
    assert [int(picture[0, 0, 0]) for picture in camera.pictures] == expected


@pytest.mark.slow
def test_a_film() -> None:
    source = vector_source("vector/CartPole-v1")
    agents = make_agents(source.spec.groups, build({"network.hidden_sizes": (4,)}), None)
    frames, fps = episode_frames(source, agents, EnvConfig(max_steps_per_episode=20), seed=0)
    pictures = list(frames)
    assert fps == 50
    assert 8 < len(pictures) <= 21, "nobody falls sooner"
    assert any((pictures[0] != picture).any() for picture in pictures)


# Runs.


def trainer(path: Path, env: Any, **keywords: Any) -> PPOTrainer:
    small: dict[str, Any] = dict(rollout_length=16, epochs_per_update=1, hidden_sizes=[4], total_timesteps=128)
    rest: dict[str, Any] = dict(eval_frequency=2, eval_episodes=2, console=probes.Notes(), preset=False)
    return PPOTrainer(env, out=path, **(small | rest | keywords))


def test_the_number_is_the_objects(tmp_path: Path) -> None:
    assert trainer(tmp_path, Counters(3)).config.env.num_envs == 3
    assert trainer(tmp_path, Counters, num_envs=5).config.env.num_envs == 5
    with pytest.raises(UserError, match=r"Counters has 3 environments, and env\.num_envs=4 asks for others"):
        trainer(tmp_path, Counters(3), num_envs=4)
    tuned = trainer(tmp_path, gymnasium.make_vec("CartPole-v1", 3), preset=True)
    assert tuned.config.env.num_envs == 3


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", Counters(4)).train()
    stop = lambda metrics: False if metrics["update"] == 1 else None  # noqa: E731
    trainer(tmp_path / "run", Counters(4)).train(callback=probes.EachUpdate(stop))
    resumed = PPOTrainer.resume(tmp_path / "run", Counters(4), steps=64, console=probes.Notes()).train()
    assert resumed["resumed"] == [{"step": 64, "exact": True}]
    assert resumed["final_eval"] == whole["final_eval"]
    assert whole["episodes"] > 10


@pytest.mark.slow
def test_a_run_on_one_object_alone(tmp_path: Path) -> None:
    vector = in_processes(2)
    result = trainer(tmp_path / "run", vector, eval_max_steps=20).train()
    assert result["final_eval"]["length_mean"] == 20
    assert not vector.closed
    vector.close()


@pytest.mark.slow
def test_a_run_of_stable_baselines3(tmp_path: Path) -> None:
    vec_env = stable_baselines3()
    result = trainer(tmp_path / "run", vec_env.VecNormalize(vec_env.DummyVecEnv([pendulum] * 2))).train()
    assert result["final_eval"]["length_mean"] == 200


def told(source: VectorSource) -> list[Any]:
    """What is tracked of the infos of environment 1, going up, in the first four steps that count."""
    opened, found = with_info(source, ("clock", "went", "third", "nothing")).open_envs(2, EnvConfig()), []
    opened.reset(0)
    for _ in range(5):
        exchange(opened, np.ones(2, int))
        moved = received(opened)
        assert moved.info is not None
        found += [np.copy(moved.info[1])] * bool(lanes(moved).valid[1])
    assert {"clock", "third", "went"} <= set(opened.info_names)
    opened.close()
    return found[:4]


TOLD = [[1, np.nan, np.nan, np.nan], [2, np.nan, np.nan, np.nan], [3, 1, 3, np.nan], [1, np.nan, np.nan, np.nan]]


@pytest.mark.parametrize("mode", MODES)
def test_numbers_of_infos_are_reported(mode: AutoresetMode) -> None:
    np.testing.assert_array_equal(told(vector_source(sync(host_probes.Telling, mode))), TOLD)


@pytest.mark.slow
def test_numbers_of_infos_of_stable_baselines3_are_reported() -> None:
    np.testing.assert_array_equal(told(vector_source(dummy(host_probes.Telling))), TOLD)
