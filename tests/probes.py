"""Environments whose right answer is known in closed form; if PPO fails one, the failure names the broken part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo import PPOTrainer
from proximo.display.console import Console
from proximo.envs.api import EnvSpec, Transition
from proximo.envs.keys import Stated

UNIT = spaces.Box(-1.0, 1.0, (1,), np.float32)
PLAIN: dict[str, Any] = dict(
    learning_rate=3e-4,
    learning_rate_schedule="constant",
    entropy_coef=0.01,
    normalize_observations=False,
    normalize_rewards=False,
)
"""The documents' values, for tests whose numbers or seeds were found with these."""


class Alike(type):
    """Of classes whose objects state a key, as Proximo's own environments do: those that are made alike, and stay as
    they are, share what was compiled for one of them."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        env = super().__call__(*given, **named)
        env.stated = Stated(env, *given, *sorted(named.items()))
        return env


class Probe(metaclass=Alike):
    """One observation entry, two actions; a subclass says what a step does. The state is (clock, cue)."""

    name = "probe"
    observation_space: spaces.Space[Any] = UNIT
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self) -> None:
        self.spec = EnvSpec(f"probe/{self.name}", self.observation_space, self.action_space)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        cue = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return (jnp.int32(0), cue), Transition(obs=self.observe(jnp.int32(0), cue))

    def observe(self, clock: jax.Array, cue: jax.Array) -> Any:
        return cue[None]


class OneStep(Probe):
    """One step, always reward 1: the value of the only state is 1."""

    name = "one-step"

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return jnp.zeros(1, jnp.float32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        return state, Transition(obs=jnp.zeros(1, jnp.float32), reward=1.0, terminated=True)


class CuedValue(Probe):
    """One step, the reward is the cue that was seen: the critic must read its input."""

    name = "cued-value"

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        return state, Transition(obs=state[1][None], reward=state[1], terminated=True)


class Delayed(Probe):
    """Two steps, reward 1 at the end: values gamma (observation 0) and 1 (observation 1)."""

    name = "delayed"

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return clock.astype(jnp.float32)[None]

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock = state[0] + 1
        last = clock == 2
        moved = Transition(obs=self.observe(clock, state[1]), reward=last.astype(jnp.float32), terminated=last)
        return (clock, state[1]), moved


class MatchTheCue(Probe):
    """One step, reward 1 if the action matches the cue: the policy must read its input."""

    name = "match-the-cue"

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        right = (action == 1) == (state[1] > 0)
        return state, Transition(obs=state[1][None], reward=right.astype(jnp.float32), terminated=True)


class TruncatedForever(Probe):
    """Reward 1 for ever, cut every five steps, never terminated: the value is 1 / (1 - gamma) everywhere."""

    name = "truncated-forever"

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return jnp.zeros(1, jnp.float32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock = state[0] + 1
        moved = Transition(obs=jnp.zeros(1, jnp.float32), reward=1.0, truncated=clock == 5, info={"seven": 7})
        return (clock, state[1]), moved


class FinalObservation(Probe):
    """Where the cue is 1, one step ends the episode with nothing: V(1) = 0. Where it is -1, one step gives 1 and the
    episode is cut at the observation 1: V(-1) = 1 + gamma V(1) = 1. A value that is bootstrapped from the observation
    after the reset would instead be 1 + gamma (V(1) + V(-1)) / 2, which makes V(-1) = 1 / (1 - gamma / 2)."""

    name = "final-observation"

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        cut = state[1] < 0
        moved = Transition(obs=jnp.ones(1, jnp.float32), reward=cut.astype(jnp.float32), terminated=~cut, truncated=cut)
        return state, moved


class FinalState(Probe):
    """`FinalObservation` in which nothing is seen, and only the critic is told the cue: V(-1) = 1, V(1) = 0."""

    name = "final-state"

    def __init__(self) -> None:
        self.spec = EnvSpec(f"probe/{self.name}", UNIT, spaces.Discrete(2), critic_state_space=UNIT)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        state, first = super().reset(key)
        return state, replace(first, critic_state=state[1][None])

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return jnp.zeros(1, jnp.float32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        cut = state[1] < 0
        moved = Transition(obs=jnp.zeros(1), reward=cut.astype(jnp.float32), terminated=~cut, truncated=cut)
        return state, replace(moved, critic_state=jnp.ones(1, jnp.float32))


class Weather(Probe):
    """A sign is seen and must be answered, which pays 0.02; the weather pays 10 or -10, whatever is answered. Only the
    critic is told the weather, or nobody is. One step an episode; `team_probes.Weather` for one agent."""

    name = "weather"
    SIGNS = 16

    def __init__(self, told: bool = True) -> None:
        seen: spaces.Space[Any] = spaces.Discrete(self.SIGNS, dtype=np.int32)
        space = UNIT if told else None
        self.told = told
        self.spec = EnvSpec(f"probe/{self.name}", seen, spaces.Discrete(2), max_steps=1, critic_state_space=space)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        own, key = jax.random.split(key)
        sign = jax.random.randint(own, (), 0, self.SIGNS, jnp.int32)
        weather = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return (sign, weather), self._report(sign, weather)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        sign, weather = state
        reward = 10 * weather + 0.02 * (action == sign % 2).astype(jnp.float32)
        return state, replace(self._report(sign, weather), reward=reward, terminated=True)

    def _report(self, sign: jax.Array, weather: jax.Array) -> Transition:
        return Transition(obs=sign, critic_state=weather[None] if self.told else None)


class Masked(Probe):
    """Three actions; the best one (2, reward 5) is forbidden, and taking it would end in reward -100."""

    name = "masked"
    action_space = spaces.Discrete(3)
    mask = (True, True, False)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        state, first = super().reset(key)
        return state, replace(first, action_mask=jnp.array(self.mask))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        reward = jnp.array([0.0, 1.0, -100.0])[action]
        return state, Transition(obs=state[1][None], reward=reward, terminated=True, action_mask=jnp.array(self.mask))


class Aim(Probe):
    """One step, one continuous action in -2..4: reward -(action - target)^2 with a target given by the cue."""

    name = "aim"
    action_space = spaces.Box(-2.0, 4.0, (1,), np.float32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        target = jnp.where(state[1] > 0, 3.0, -1.0)
        return state, Transition(obs=state[1][None], reward=-jnp.square(action[0] - target), terminated=True)


class Switches(Probe):
    """One step; one reward for each component that matches the cue. A subclass gives the space."""

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        wanted = (state[1] > 0).astype(jnp.int32)
        return state, Transition(
            obs=state[1][None], reward=(action.astype(jnp.int32) == wanted).mean(), terminated=True
        )


class MultiDiscreteSwitches(Switches):
    name = "multi-discrete"
    action_space = spaces.MultiDiscrete([2, 3, 4], dtype=np.int32)


class BinarySwitches(Switches):
    name = "multi-binary"
    action_space = spaces.MultiBinary(3)


class Recall(Probe):
    """Two steps. The first shows the cue as 1 or 2, the second 0; reward 1 if the second action matches the cue."""

    name = "recall"
    observation_space = spaces.Discrete(3, dtype=np.int32)

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return jnp.where(clock == 0, jnp.where(cue > 0, 2, 1), 0).astype(jnp.int32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cue = state
        last = clock == 1
        right = last & ((action == 1) == (cue > 0))
        moved = Transition(obs=self.observe(clock + 1, cue), reward=right.astype(jnp.float32), terminated=last)
        return (clock + 1, cue), moved


class Counter(Probe):
    """Counts its steps and never ends by itself; the observation is the clock. For tests of bookkeeping."""

    name = "counter"
    observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return clock.astype(jnp.float32)[None]

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock = state[0] + 1
        return (clock, state[1]), Transition(obs=self.observe(clock, state[1]), reward=clock.astype(jnp.float32))


class Alternating(Probe):
    """Eight steps without anything to see; 1 for each action that differs from the one before (the first differs from
    0). Drawn evenly, actions return 4 on average; the same action again and again returns 0 or 1."""

    name = "alternating"

    def observe(self, clock: jax.Array, last: jax.Array) -> jax.Array:
        return jnp.zeros(1, jnp.float32)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return (jnp.int32(0), jnp.int32(0)), Transition(obs=jnp.zeros(1, jnp.float32))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, last = state[0] + 1, state[1]
        action = action.astype(jnp.int32)
        reward = (action != last).astype(jnp.float32)
        return (clock, action), Transition(obs=jnp.zeros(1, jnp.float32), reward=reward, terminated=clock == 8)


@contextmanager
def without_pictures() -> Iterator[None]:
    """For fixtures of a whole module, which `no_pictures` of conftest.py does not reach."""
    with mock.patch("proximo.train.finish.write_plots", return_value=[]):
        yield


class EachUpdate:
    """A callback that is called once for each update."""

    def __init__(self, call: Callable[[dict[str, Any]], Any]) -> None:
        self.log_training_step = call


class Notes(Console):
    """A console that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, sentence: str) -> None:
        self.said.append(sentence)

    warn = note


class LongRecall(Probe):
    """Five steps. The first shows the cue, the others nothing; reward 1 if the last action matches the cue. A policy
    that sees only what is there gets 0.5."""

    name = "long-recall"
    length = 5

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return jnp.where(clock == 0, cue, 0.0)[None]

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cue = state
        last = clock == self.length - 1
        right = last & ((action == 1) == (cue > 0))
        moved = Transition(obs=self.observe(clock + 1, cue), reward=right.astype(jnp.float32), terminated=last)
        return (clock + 1, cue), moved


class Errand(Probe):
    """One of `num_cues` cues is shown at the first of `length` steps; reward 1 if the last action is the cue's own. A
    dictionary to see, and one action that is always forbidden. Without memory 1 / `num_cues` is the best."""

    def __init__(self, length: int, num_cues: int = 2) -> None:
        self.name, self.length, self.num_cues = f"errand-{length}-{num_cues}", length, num_cues
        cue: spaces.Space[Any] = spaces.Discrete(num_cues + 1, dtype=np.int32)
        clock = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space, self.action_space = spaces.Dict({"cue": cue, "clock": clock}), cue
        super().__init__()

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        cue = jax.random.randint(key, (), 1, self.num_cues + 1)
        return (jnp.int32(0), cue), Transition(obs=self.observe(jnp.int32(0), cue), action_mask=self.mask())

    def mask(self) -> jax.Array:
        return jnp.arange(self.num_cues + 1) > 0

    def observe(self, clock: jax.Array, cue: jax.Array) -> dict[str, jax.Array]:
        return {"cue": jnp.where(clock == 0, cue, 0), "clock": (clock.astype(jnp.float32) / self.length)[None]}

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cue = state
        last = clock == self.length - 1
        right = (last & (action == cue)).astype(jnp.float32)
        moved = Transition(self.observe(clock + 1, cue), reward=right, terminated=last, action_mask=self.mask())
        return (clock + 1, cue), moved


class Everything(Probe):
    """Memory, masks, a dictionary to see and a dictionary to do at once. Four steps; the first shows a cue. At the end
    the choice must be the cue's (worth 1; one of the four is always forbidden, and would cost 10), the switch must be
    on, and the dial must point to where the cue says (worth 1 at most)."""

    name = "everything"
    length = 4
    observation_space = spaces.Dict(
        {"cue": spaces.Discrete(3, dtype=np.int32), "clock": spaces.Box(0.0, 1.0, (1,), np.float32)}
    )
    action_space = spaces.Dict(
        {
            "choice": spaces.Discrete(4, dtype=np.int32),
            "dial": spaces.Box(-1.0, 3.0, (1,), np.float32),
            "switch": spaces.MultiBinary(1),
        }
    )
    mask = (True, True, True, False, True, True)  # the four choices, and the two of the switch

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        state, first = super().reset(key)
        return state, replace(first, action_mask=jnp.array(self.mask))

    def observe(self, clock: jax.Array, cue: jax.Array) -> dict[str, jax.Array]:
        shown = jnp.where(clock == 0, jnp.where(cue > 0, 2, 1), 0).astype(jnp.int32)
        return {"cue": shown, "clock": (clock.astype(jnp.float32) / self.length)[None]}

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cue = state
        last = clock == self.length - 1
        right = action["choice"] == jnp.where(cue > 0, 2, 1)
        near = jnp.maximum(0.0, 1 - jnp.abs(action["dial"][0] - jnp.where(cue > 0, 2.0, 0.0)))
        earned = right.astype(jnp.float32) + near + action["switch"][0].astype(jnp.float32)
        reward = jnp.where(last, earned, 0.0) - 10.0 * (action["choice"] == 3).astype(jnp.float32)
        moved = Transition(
            obs=self.observe(clock + 1, cue), reward=reward, terminated=last, action_mask=jnp.array(self.mask)
        )
        return (clock + 1, cue), moved


class Listener:
    """Writes down what it hears; `wishes` are what it answers."""

    def __init__(self, **wishes: Any) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.wishes = wishes

    def on_start(self, trainer: PPOTrainer) -> Any:
        return self.hear("start", trainer.path.name)

    def on_evaluation(self, metrics: dict[str, Any]) -> Any:
        return self.hear("evaluation", metrics["episodes"])

    def on_checkpoint(self, path: Path) -> Any:
        assert path.is_file()
        return self.hear("checkpoint", int(path.stem.removeprefix("step_")))

    def on_end(self, result: dict[str, Any]) -> Any:
        return self.hear("end", result["updates"])

    def hear(self, event: str, told: Any) -> Any:
        self.heard.append((event, told))
        return self.wishes.get(event)
