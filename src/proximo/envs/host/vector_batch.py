"""Vector environments as a `Batch`: in which ways they reset their environments, and how they say what."""

from __future__ import annotations

import abc
import traceback
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from proximo.envs.host.batched import Batch, Report, info_table
from proximo.envs.host.camera import Camera
from proximo.envs.host.shared_memory import UNSAID
from proximo.envs.host.slot import CRITIC_STATE, tracked_number
from proximo.envs.host.snapshot import decode, encode, has_hook, hook_state, set_hook_state
from proximo.envs.host.transfer import MASK, EnvContractError, learnable
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, UserError, quoted
from proximo.spaces import Path, build, pick, shown

MODE, METHOD = "autoreset_mode", "action_masks"
STEP_LIMIT = "max_episode_steps"


class Shared:
    """Who uses the object, where there can be only one: whoever has reset it last."""

    def __init__(self) -> None:
        self.holder: Any = None


class FirstOf:
    """A vector environment that shows the first of its environments; one that is `shared` stays open."""

    def __init__(self, env: Any, shared: bool):
        self.env = env
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def render(self) -> Any:
        frames = self.env.get_images() if hasattr(self.env, "get_images") else self.env.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        if not self._shared:
            self.env.close()


class VectorCamera(Camera):
    """Pictures of the first of the environments of a vector environment."""

    env: FirstOf
    _last: NDArray[Any]

    def reset(self, **given: Any) -> None:
        """Look whether it can be drawn."""
        self.env.env.reset()
        self._take()

    def take(self) -> None:
        self._take()
        self._last = self.pictures[-1]

    def follow(self, ended: bool, stays: bool) -> None:
        """After a step: a picture of where it led; and after an end, one of the next episode. Where that has begun
        already, unless the end `stays` to be seen, the picture before stands for it."""
        if ended and not stays:
            self.pictures.append(self._last)
        self.take()
        if ended and stays:
            self.pictures.append(self._last)


class VectorBatch(Batch):
    """A vector environment as a `Batch` of its first `num` environments; others, where it has more, do as the first.

    After `limit` steps an episode is cut. Where an environment cannot be reset alone, the next episode goes on there.
    """

    def __init__(
        self,
        env: Any,
        spec: EnvSpec,
        space: spaces.Space[Any],
        mask_source: str | None,
        num: int,
        limit: int | None = None,
        shared: Shared | None = None,
        camera: VectorCamera | None = None,
    ):
        super().__init__()
        self.env = env
        self.saves = has_hook(env)
        self.end_stays = False
        """Whether what an episode ended with is there until the next step."""
        self._spec, self._space, self._mask_source = spec, space, mask_source
        self._num, self._limit, self._shared, self._camera = num, limit, shared, camera
        self._width = int(env.num_envs)
        self._length = np.zeros(self._width, np.int64)
        self._ended = np.zeros(self._width, bool)
        self._options: dict[str, Any] | None = None
        self._action: Any = None
        self._said_cut = False

    def reset(self, seed: int, options: dict[str, Any] | None) -> Report:
        if self._shared is not None:
            self._shared.holder = self
        self._options = options
        self._length[...] = 0
        self._ended[...] = False
        report = self._begun(seed, options)
        if self._camera is not None:
            self._camera.take()
        return self._asked_for(report)

    def send(self, action: Any) -> None:
        rest = self._width - self._num
        self._action = action
        if rest:
            self._action = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], rest, axis=0)]), action)

    def recv(self) -> Report:
        report = self._stepped(self._action)
        if self._camera is not None:
            self._camera.follow(bool(report.terminated[0] or report.truncated[0]), self.end_stays)
        return self._asked_for(report)

    def taken_away(self) -> bool:
        return self._shared is not None and self._shared.holder is not self

    def get_state(self) -> bytes:
        return encode([hook_state(self.env, self.env), self._length, self._ended])

    def set_state(self, state: bytes) -> None:
        held, self._length[...], self._ended[...] = decode(state)
        set_hook_state(self.env, self.env, held)

    def close(self) -> None:
        if self._shared is None:  # else it is the user's
            self.env.close()

    @abc.abstractmethod
    def _begun(self, seed: int, options: dict[str, Any] | None) -> Report: ...

    @abc.abstractmethod
    def _stepped(self, action: Any) -> Report: ...

    def _cut(self, ended: NDArray[Any], valid: NDArray[Any]) -> NDArray[Any]:
        """Whose episodes have come to the limit, after a step in which those of others `ended`."""
        self._length += valid
        cut: NDArray[Any] = valid & ~ended & (self._length == (self._limit or -1))
        self._length[ended | cut] = 0
        return cut

    def _say_cut(self) -> None:
        if not self._said_cut:
            self._said_cut = True
            self.notices.append(
                f"Episodes of {self._spec.id} are cut after {self._limit:,} steps. It cannot reset one of its "
                f"environments alone, so the next episode goes on where one was cut; this is said once."
            )

    def _asked_for(self, report: Report) -> Report:
        """Without the environments that nobody asked for."""
        if self._width == self._num:
            return report
        masks = None if report.action_mask is None else report.action_mask[: self._num]
        rest = tuple(report._replace(action_mask=None))
        kept = Report(*jax.tree.map(lambda leaf: leaf[: self._num] if np.ndim(leaf) else leaf, rest))
        return kept._replace(action_mask=masks)

    def _flags(self, given: Any, what: str) -> NDArray[Any]:
        flags = np.asarray(given)
        if flags.shape != (self._width,) or flags.dtype.kind not in "biu":
            raise EnvContractError(
                f"{what} must be True or False for each of {self._width} environments, not {flags.dtype} of the shape "
                f"{flags.shape}"
            )
        return flags.astype(bool)

    def _state_space(self) -> spaces.Space[Any]:
        assert self._spec.critic_state_space is not None
        return self._spec.critic_state_space


class GymnasiumBatch(VectorBatch):
    """A `gymnasium.vector.VectorEnv`, in each of the modes in which it may reset its environments."""

    def __init__(self, env: Any, *given: Any):
        super().__init__(env, *given)
        self._mode = autoreset_mode(env, self._spec.id)
        self.end_stays = self._mode is AutoresetMode.NEXT_STEP
        alone = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._resets_alone = alone or self._mode is AutoresetMode.DISABLED

    def _begun(self, seed: int, options: dict[str, Any] | None) -> Report:
        obs, info = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=dict(options))
        return Report(obs, action_mask=self._masks(obs, info), critic_state=self._critic_state(info))

    def _stepped(self, action: Any) -> Report:
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvContractError("step must return five values (obs, reward, terminated, truncated, info)")
        obs, reward, terminated, truncated, info = result
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        valid = ~self._ended if self.end_stays else np.ones(self._width, bool)  # what follows an end is the reset
        ended = (terminated | truncated) & valid
        cut = self._cut(ended, valid)
        masks, state, success = self._masks(obs, info), self._critic_state(info), self._success(info)
        final_obs, final_state = obs, state
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            final_obs = self._final_obs(obs, info, ended)
            last = info.get("final_info", {})
            success = np.where(ended, self._success(last), success)
            if state is not None:
                final_state = _rows_of(self._state_space(), ended, self._critic_state(last), state)
        told = self._tracked(info, ended) if self._spec.info else None
        begins = ended | cut if self._mode is AutoresetMode.DISABLED else cut
        if begins.any() and not self._resets_alone:
            self._say_cut()
        elif begins.any():
            # Copies, because an environment may show what comes next in the same arrays.
            obs, state, final_obs, final_state = jax.tree.map(np.array, (obs, state, final_obs, final_state))
            first, said = self.env.reset(options={**(self._options or {}), "reset_mask": begins.copy()})
            obs = _rows_of(self._space, begins, first, obs)
            if state is not None:
                state = _rows_of(self._state_space(), begins, self._critic_state(said), state)
            if masks is not None:
                new = self._masks(first, said) or masks
                masks = [new[i] if begins[i] else masks[i] for i in range(self._width)]
        if self.end_stays:
            self._ended = ended
        ends = (truncated | cut, valid, success, masks, state, final_obs, final_state)
        return Report(obs, reward, terminated, *ends, told)

    def _tracked(self, info: Any, ended: NDArray[Any]) -> NDArray[Any]:
        """What is tracked of infos; where an environment was reset in the same step, of what it ended with."""
        table, said = info_table(self._spec.info, info, self._width), info
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            said = info.get("final_info", {})
            table = np.where(ended[:, None], info_table(self._spec.info, said, self._width), table)
        if ended[0]:
            self.info_names = sorted(name for name in said if not name.startswith("_"))
        return table

    def _final_obs(self, obs: Any, info: Any, ended: NDArray[Any]) -> Any:
        """What episodes ended with: all of them side by side, or an array of objects, as Gymnasium's own have it."""
        given = info.get("final_obs")
        if given is None:
            raise EnvContractError(
                "its autoreset_mode is SAME_STEP, and info has no entry 'final_obs' where an episode ended"
            )
        if isinstance(given, np.ndarray) and given.dtype == object:
            return _with_rows(self._space, obs, {int(i): given[i] for i in np.flatnonzero(ended)}, "final_obs")
        return _rows_of(self._space, ended, given, obs)

    def _masks(self, obs: Any, info: Any) -> list[Any] | None:
        if self._mask_source is None:
            return None
        if self._mask_source == "method":
            return list(find(self.env, METHOD)())
        given = (info if self._mask_source == "info" else obs).get(MASK)
        if given is None:
            raise EnvContractError("the action mask is missing, which was there at the first reset")
        return [jax.tree.map(lambda leaf, i=i: leaf[i], given) for i in range(self._width)]

    def _critic_state(self, info: Any) -> Any:
        if self._spec.critic_state_space is None:
            return None
        if CRITIC_STATE not in info:
            raise EnvContractError(f"info has no entry {CRITIC_STATE!r}, and the environment has a critic_state_space")
        return info[CRITIC_STATE]

    def _success(self, info: Any) -> NDArray[Any]:
        """1, 0, or where nothing is said -1."""
        said, found = info.get("is_success"), np.full(self._width, UNSAID, np.int8)
        if said is not None:
            who = np.asarray(info.get("_is_success", np.ones(self._width, bool)))
            found[who] = np.asarray([bool(one) for one in said])[who]
        return found


ADDED = {"terminal_observation", "TimeLimit.truncated"}
"""What Stable-Baselines3 puts into infos itself."""


class SB3Batch(VectorBatch):
    """A `VecEnv` of Stable-Baselines3: an environment that ends is reset in the same step, and the info of that step
    has what it ended with. The info of the reset is in `reset_infos`."""

    def _begun(self, seed: int, options: dict[str, Any] | None) -> Report:
        self.env.seed(seed)
        if options is not None:
            self.env.set_options(options)
        obs = self.env.reset()
        infos = self._reset_infos()
        return Report(obs, action_mask=self._masks(obs, infos), critic_state=self._critic_state(infos))

    def _stepped(self, action: Any) -> Report:
        self.env.step_async(action)
        obs, reward, dones, infos = self.env.step_wait()
        ended = self._flags(dones, "done")
        late = np.array([bool(info.get("TimeLimit.truncated")) for info in infos])
        cut = self._cut(ended, np.ones(self._width, bool))
        if cut.any():
            self._say_cut()
        final_obs, now = obs, list(infos)
        if ended.any():
            last = {}
            for i in map(int, np.flatnonzero(ended)):
                if "terminal_observation" not in infos[i]:
                    raise EnvContractError("info has no entry 'terminal_observation' where an episode ended")
                last[i], now[i] = infos[i]["terminal_observation"], self._reset_infos()[i]
            final_obs = _with_rows(self._space, obs, last, "terminal_observation")
        said = [info.get("is_success") for info in infos]
        return Report(
            obs=obs,
            reward=reward,
            terminated=ended & ~late,
            truncated=(ended & late) | cut,
            success=np.array([UNSAID if one is None else bool(one) for one in said], np.int8),
            action_mask=self._masks(obs, now),
            critic_state=self._critic_state(now),
            final_obs=final_obs,
            final_critic_state=self._critic_state(infos),
            info=self._tracked(infos, ended) if self._spec.info else None,
        )

    def _reset_infos(self) -> list[Any]:
        return list(getattr(self.env, "reset_infos", None) or [{}] * self._width)

    def _tracked(self, infos: list[Any], ended: NDArray[Any]) -> NDArray[Any]:
        """What is tracked of infos, which at an end are those of what has ended."""
        if ended[0]:
            self.info_names = sorted(set(infos[0]) - ADDED)
        names = self._spec.info
        told = [
            [np.nan if info.get(name) is None else tracked_number(name, info[name]) for name in names] for info in infos
        ]
        return np.array(told)

    def _masks(self, obs: Any, infos: list[Any]) -> list[Any] | None:
        if self._mask_source is None:
            return None
        if self._mask_source == "method":
            return list(self.env.env_method(METHOD))
        if self._mask_source == "obs":
            return list(obs[MASK])
        return [info.get(MASK) for info in infos]

    def _critic_state(self, infos: list[Any]) -> Any:
        if self._spec.critic_state_space is None:
            return None
        if not all(CRITIC_STATE in info for info in infos):
            raise EnvContractError(f"info has no entry {CRITIC_STATE!r}, and the environment has a critic_state_space")

        def side_by_side(path: Path, _: spaces.Space[Any]) -> NDArray[Any]:
            return np.stack([pick(info[CRITIC_STATE], path) for info in infos])

        return build(self._spec.critic_state_space, side_by_side)


def _rows_of(space: spaces.Space[Any], which: NDArray[Any], new: Any, old: Any) -> Any:
    """Trees [E, ...] of the form of `space`: of environments `which`, `new`, and of the others, `old`."""

    def chosen(path: Path, leaf: spaces.Space[Any]) -> NDArray[Any]:
        ours, theirs = (np.asarray(_entry(tree, path)) for tree in (new, old))
        return np.where(which.reshape(-1, *[1] * (theirs.ndim - 1)), ours, theirs)

    return build(space, chosen)


def _with_rows(space: spaces.Space[Any], tree: Any, rows: Mapping[int, Any], what: str) -> Any:
    """A copy of a tree [E, ...] in which some environments have what `rows` says."""

    def replaced(path: Path, leaf: spaces.Space[Any]) -> NDArray[Any]:
        array = np.array(_entry(tree, path))
        for i, row in rows.items():
            value = np.asarray(_entry(row, path, what))
            if value.shape != array.shape[1:]:
                raise EnvContractError(
                    f"{what}{shown(path)} must have the shape {array.shape[1:]}, not {value.shape} (environment {i})"
                )
            array[i] = value
        return array

    return build(space, replaced)


def _entry(tree: Any, path: Path, what: str = "observation") -> Any:
    try:
        return pick(tree, path)
    except (KeyError, IndexError, TypeError):
        raise EnvContractError(f"the {what} has no entry {shown(path)}") from None


def survey(env: Any, name: str) -> tuple[type[VectorBatch], str | None, spaces.Space[Any], EnvSpec, list[str]]:
    """The kind of batch, where action masks are, the space that is observed without texts and masks, what there is to
    know of `env`, and the texts that are left out."""
    gym = isinstance(env, gymnasium.vector.VectorEnv)
    if gym:
        autoreset_mode(env, name)
    else:
        env.seed(0)
    try:
        obs, info = env.reset(seed=0) if gym else (env.reset(), (getattr(env, "reset_infos", None) or [{}])[0])
    except Exception as error:
        raise EnvError(
            f"The environment {name} cannot be reset: {type(error).__name__}: {error}.", traceback.format_exc()
        ) from None
    space, action_space = (
        (env.single_observation_space, env.single_action_space) if gym else (env.observation_space, env.action_space)
    )
    mask = None
    if MASK in info:
        mask = "info"
    elif isinstance(space, spaces.Dict) and MASK in space.spaces:
        mask = "obs"
    elif callable(find(env, METHOD)) if gym else env.has_attr(METHOD):
        mask = "method"
    observed, left_out = learnable(space, obs, mask, name)
    judged = find(env, "critic_state_space")
    if judged is not None and CRITIC_STATE not in info:
        raise UserError(f"{name} has a critic_state_space, and the info of its reset has no entry {CRITIC_STATE!r}.")
    spec = EnvSpec(name, observed, action_space, _max_steps(env), mask is not None, judged)
    return (GymnasiumBatch if gym else SB3Batch), mask, observed, spec, left_out


def autoreset_mode(env: Any, name: str) -> AutoresetMode:
    """When a vector environment resets those that ended, as it says itself: guessing wrong would spoil what is learned
    without a word."""
    given = env.metadata.get(MODE)
    try:
        return AutoresetMode(given)
    except ValueError:
        raise UserError(
            f'{name} does not say when it resets environments that ended: its metadata["{MODE}"] must be one of '
            f"gymnasium.vector.AutoresetMode (NEXT_STEP, SAME_STEP, DISABLED), not {quoted(given)}."
        ) from None


def find(env: Any, attribute: str) -> Any:
    """An attribute of a vector environment, or of the environments in it where they are at hand; None if there is
    none. Worker processes are not asked: to those of Gymnasium, a name that they do not have is fatal."""
    for layer in layers(env):
        if (found := getattr(layer, attribute, None)) is not None:
            return found
    inner = getattr(env.unwrapped, "envs", None)
    if not inner:
        return None
    try:
        found = [one.get_wrapper_attr(attribute) for one in inner]
    except AttributeError:
        return None
    return (lambda: [one() for one in found]) if callable(found[0]) else found[0]


def layers(env: Any) -> list[Any]:
    """A vector environment and what is inside of its wrappers, the outermost first."""
    found = [env]
    while (inner := vars(found[-1]).get("env", vars(found[-1]).get("venv"))) is not None:
        found.append(inner)
    return found


def _max_steps(env: Any) -> int | None:
    """The limit of the environments themselves, where it is known."""
    for known in (find(env, "spec"), env.unwrapped):
        limit = getattr(known, STEP_LIMIT, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None
