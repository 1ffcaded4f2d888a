"""Makes Gymnasium's environments by their ids. Worker processes import this: it loads no JAX."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from proximo.envs.arguments import Wrappers, apply_wrappers


def make_wrapped(factory: Callable[..., Any], wrappers: Wrappers, /, **options: Any) -> Any:
    """What `factory` makes, inside of `wrappers`."""
    return apply_wrappers(factory(**options), wrappers)


def make_registered(registered: EnvSpec | str, /, **options: Any) -> gymnasium.Env[Any, Any]:
    """From what was registered: a worker process may not have run the code that does so."""
    # Its checker asks at every step what lanes ask better.
    return gymnasium.make(registered, disable_env_checker=True, **options)


def make_atari(name: str, /, **options: Any) -> gymnasium.Env[Any, Any]:
    """The standard preprocessing: up to 30 no-ops at the start, every fourth frame (the maximum of the last two),
    84 x 84 in grey, the last four frames. Episodes are whole games and rewards are not clipped, so that returns are
    scores; `normalize.clip_rewards` clips them for learning."""
    importlib.import_module("ale_py")  # registers the games: in a worker process nobody has yet
    sticky = options.pop("repeat_action_probability", gymnasium.spec(name).kwargs.get("repeat_action_probability", 0.0))
    env = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True, **options)
    return FrameStackObservation(AtariPreprocessing(Game(env, sticky)), 4)


class Game(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game of Atari that depends on nothing but its last seed and the actions since, so that it can be replayed.

    Each action is repeated with the probability `sticky` at the next frame. The emulator would do that itself, from
    random numbers that only loading the game again seeds, which takes twenty times as long as a reset. Without them it
    is deterministic, and a seeded reset puts it back to where it was when it was first loaded.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], sticky: float):
        super().__init__(env)
        self._sticky = sticky
        self._game: Any = env.unwrapped
        self._last: Any = 0
        self._loaded: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._last = 0
        if seed is None or self._loaded is None:
            found = self.env.reset(seed=seed, options=options)
            if seed is not None:
                self._loaded = self._game.ale.cloneState(include_rng=True)
            return found
        self._game.seed_game(seed)
        self._game.ale.restoreState(self._loaded)
        return self._game._get_obs(), self._game._get_info()

    def step(self, action: Any) -> Any:
        if self._game.np_random.random() >= self._sticky:
            self._last = action
        return self.env.step(self._last)
