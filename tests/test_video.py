"""Films of episodes: what is drawn, and what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import host_probes
import probes
from proximo import PPOAgent, PPOTrainer
from proximo.config import EnvConfig
from proximo.envs import make
from proximo.envs.api import Transition
from proximo.errors import EnvError, UserError
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Learners, actors
from proximo.rollout import video_file
from proximo.rollout.evaluate import make_evaluator
from proximo.rollout.video import episode_frames
from proximo.rollout.video_file import write_video

av = pytest.importorskip("av")


def decoded(path: Path) -> tuple[Any, Any]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], container.streams.video[0]


def grey(level: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


@pytest.mark.parametrize(("height", "width"), [(48, 64), (33, 51)])
def test_written_frames_come_back(height: int, width: int, tmp_path: Path) -> None:
    """Ten shades of grey; odd sizes grow by one for H.264. The first rows stay the first."""
    frames = [grey(20 * i, height, width) for i in range(10)]
    frames[0][: height // 2] = 255
    assert write_video(tmp_path / "some" / "film", iter(frames), 20.0) == (10, False)
    assert sorted(file.name for file in (tmp_path / "some").iterdir()) == ["film.gif", "film.mp4"]
    seen, stream = decoded(tmp_path / "some" / "film.mp4")
    assert [frame.shape for frame in seen] == [(height + height % 2, width + width % 2, 3)] * 10
    assert float(stream.average_rate) == 20.0
    np.testing.assert_allclose([frame[-4:].mean() for frame in seen], [20 * i for i in range(10)], atol=8)
    assert seen[0][:4].mean() > 200
    with Image.open(tmp_path / "some" / "film.gif") as gif:
        assert (getattr(gif, "n_frames", 1), gif.size, gif.info["duration"]) == (10, (width, height), 50)


def test_a_gif_has_fewer_and_smaller_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "film", (grey(5 * i, 200, 800) for i in range(30)), 50.0)
    assert len(decoded(tmp_path / "film.mp4")[0]) == 30
    with Image.open(tmp_path / "film.gif") as gif:
        assert (getattr(gif, "n_frames", 1), gif.size, gif.info["duration"]) == (15, (400, 100), 40)


def test_long_films_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_file, "MAX_FRAMES", 4)
    assert write_video(tmp_path / "film", (grey(i) for i in range(5)), 30.0) == (4, True)
    assert len(decoded(tmp_path / "film.mp4")[0]) == 4
    assert write_video(tmp_path / "film", (grey(i) for i in range(4)), 30.0) == (4, False)


@pytest.mark.parametrize(("frames", "words"), [([], "no frame was drawn"), ([grey(0), grey(0, 8, 8)], "same size")])
def test_what_cannot_be_written_leaves_nothing_behind(frames: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        write_video(tmp_path / "film", frames, 30.0)
    assert not any(tmp_path.iterdir())


class Drawn(probes.Counter):
    """Is as bright as its clock says, and ends after five steps."""

    metadata = {"render_fps": 12}  # noqa: RUF012

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = super().step(key, state, action)
        return state, replace(moved, terminated=state[0] == 5)

    def render(self, state: Any) -> jax.Array:
        return jnp.full((9, 11, 3), 10 * state[0], jnp.uint8)


class HostDrawn(gymnasium.Env[Any, Any]):
    """The same on the host. Only the second action is allowed, and it takes no other."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = "rgb_array", picture: tuple[int, ...] = (9, 11, 3)) -> None:
        self.render_mode, self.picture = render_mode, picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros(1, np.float32), {"action_mask": np.array([False, True])}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action != 1:
            raise RuntimeError("forbidden")
        self.clock += 1
        return np.zeros(1, np.float32), 1.0, self.clock == 5, False, {"action_mask": np.array([False, True])}

    def render(self) -> np.ndarray:
        return np.full(self.picture, 10 * self.clock, np.uint8)


class OneCanvas(HostDrawn):
    """Draws on the same array again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.canvas = np.zeros(self.picture, np.uint8)

    def render(self) -> np.ndarray:
        self.canvas[...] = 10 * self.clock
        return self.canvas


def filmed(env: Any, seed: int = 0, deterministic: bool = True, **keywords: Any) -> tuple[Any, Any]:
    source = make(env)
    agent = PPOAgent(source.spec.observation_space, source.spec.action_space)
    frames, fps = episode_frames(source, Agents.of_one(agent), EnvConfig(**keywords), seed, deterministic)
    return list(frames), fps


@pytest.mark.slow
@pytest.mark.parametrize("env", [Drawn(), HostDrawn, OneCanvas], ids=["jax", "host", "canvas"])
def test_an_episode_from_its_start_to_its_end(env: Any) -> None:
    frames, fps = filmed(env)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 10, 20, 30, 40, 50]
    assert {frame.shape for frame in frames} == {(9, 11, 3)}
    assert fps == 12
    assert len(filmed(env, deterministic=False, max_steps_per_episode=3)[0]) == 4


@pytest.mark.slow
def test_the_film_shows_the_first_episode_of_an_evaluation() -> None:
    source = make("CartPole-v1")
    agent = PPOAgent(source.spec.observation_space, source.spec.action_space)
    agents = Agents.of_one(agent)
    evaluator = make_evaluator(source, Learners(agents.policies), 2, EnvConfig(workers=0), 4)
    played = evaluator(actors(agents.groups))
    frames, fps = episode_frames(source, agents, EnvConfig(), 4)
    shown = list(frames)
    assert played is not None
    assert len(shown) == played.lengths[0] + 1
    assert (shown[0].shape, fps) == ((400, 600, 3), 50)
    # The black cart stands on the track, in the lower part of the picture; the pole above it is brown.
    dark = np.argwhere(shown[0].sum(-1) == 0)[:, 0]
    brown = np.argwhere((shown[0] == (202, 152, 101)).all(-1))[:, 0]
    assert 200 < brown.mean() < dark.mean() < 350


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("gymnax/CartPole-v1", r"gymnax/CartPole-v1 cannot be drawn: it has no method `render\(state\)`"),
        (host_probes.Walk, "made with render_mode=None, not rgb_array"),
        (lambda: HostDrawn(picture=(9, 11)), r"must give uint8 \[H, W, 3\], and gave uint8\[9, 11\]"),
    ],
)
def test_environments_that_cannot_be_drawn(env: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        filmed(env)


def test_other_host_environments_cannot_be_drawn() -> None:
    class Pool:
        spec = make(HostDrawn).spec

        def open_envs(self, num_envs: int, env: Any) -> None:
            raise AssertionError("not asked")

    with pytest.raises(UserError, match="EnvPool's cannot"):
        filmed(Pool())


def test_failures_while_filming_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fragile(HostDrawn):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise RuntimeError("broken")

    with pytest.raises(EnvError, match=r"Fragile \(number 0, at step 1 .* failed: RuntimeError: broken"):
        filmed(Fragile)

    def broken(self: Any) -> None:
        raise RuntimeError("no colours left")

    monkeypatch.setattr(HostDrawn, "render", broken)
    with pytest.raises(UserError, match="cannot be drawn here: RuntimeError: no colours left"):
        filmed(HostDrawn)

    def without_pygame(self: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed.")

    monkeypatch.setattr(HostDrawn, "render", without_pygame)
    with pytest.raises(UserError, match=r'pygame is not installed; pip install "proximo\[video\]"'):
        filmed(HostDrawn)


@pytest.mark.slow
@pytest.mark.pictures
def test_a_run_can_end_with_a_film(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(
        num_envs=2, rollout_length=8, minibatch_size=8, hidden_sizes=[8], total_timesteps=16, workers=0
    )
    PPOTrainer("CartPole-v1", out=tmp_path / "run", preset=False, track_video=True, **settings).train()
    assert sorted(file.name for file in (tmp_path / "run" / "videos").iterdir()) == ["final.gif", "final.mp4"]
    with pytest.raises(UserError, match="cannot be drawn"):
        PPOTrainer("gymnax/CartPole-v1", preset=False, track_video=True, **settings)
