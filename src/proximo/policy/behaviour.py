"""Who acts in a rollout: the policies that learn, or others beside them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key, Shaped
from numpy.typing import NDArray

from proximo.policy.policies import Policies
from proximo.policy.policy import Params, Stats, part_of
from proximo.seeding import Keys, group_key
from proximo.types import AnyArray, PyTree


@runtime_checkable
class Learner(Protocol):
    """Of a group's learner, what acting needs."""

    @property
    def params(self) -> Params: ...
    @property
    def obs_stats(self) -> Stats: ...


@runtime_checkable
class Trained(Protocol):
    """Of the state of training, what a behaviour may look at."""

    @property
    def groups(self) -> Mapping[str, Learner]: ...
    @property
    def keys(self) -> Keys: ...
    @property
    def update(self) -> Int[Array, ""]: ...
    @property
    def opponents(self) -> PyTree[Shaped[Array, "..."]]: ...


ByGroup = dict[str, PyTree[Shaped[Array, "_ ..."]]]
"""[L, ...] of the lanes of each group."""


@runtime_checkable
class Behaviour(Protocol):
    """Who acts. What it chooses from the state of training is handed back to it at each step of a rollout."""

    policies: Policies
    key: Hashable | None
    """What it is, as part of the keys of programs; None if that cannot be said."""
    learns: Bool[NDArray[Any], "E A"] | None
    """Who plays by the policies that learn; None: everybody."""
    sides: dict[str, Bool[NDArray[Any], " A"]] | None
    """Who is on each side; None: there are none."""

    def choose(self, train: Trained) -> PyTree:
        """What acting needs for the rollout of an update."""
        ...

    def act(self, chosen: PyTree, carry: ByGroup, obs: ByGroup, envs: slice) -> tuple[ByGroup, ByGroup]:
        """What lanes of the environments `envs` do who see `obs`, dictionaries by group: the actors' new
        memory, and the parameters [L, P] of their actions' distributions."""
        ...

    def initial_opponents(self, train: Trained) -> PyTree:
        """What is kept of earlier policies at first; None if nothing is."""
        ...

    def updated_opponents(self, train: Trained) -> PyTree:
        """What is kept of earlier policies after an update."""
        ...

    def scored(self, episodes: Any) -> Any:
        """Episodes, with what those who learn have won in them, where that can be said."""
        ...


class Learners:
    """Everybody acts by the policy that learns. Chosen are parameters and statistics, by group."""

    learns: Bool[NDArray[Any], "E A"] | None = None
    sides: dict[str, Bool[NDArray[Any], " A"]] | None = None

    def __init__(self, policies: Policies):
        self.policies = policies
        self.key = policies.key

    def choose(self, train: Trained) -> PyTree:
        return actors(train.groups)

    def act(self, chosen: PyTree, carry: ByGroup, obs: ByGroup, envs: slice) -> tuple[ByGroup, ByGroup]:
        return act_by(self.policies, chosen, carry, obs)

    def initial_opponents(self, train: Trained) -> PyTree:
        return None

    def updated_opponents(self, train: Trained) -> PyTree:
        return None

    def scored(self, episodes: Any) -> Any:
        return episodes


def actors(groups: Mapping[str, Learner]) -> PyTree:
    """Of learners, or agents, what acting takes."""
    return {
        "params": {name: part_of(own.params, "actor") for name, own in groups.items()},
        "stats": {name: own.obs_stats for name, own in groups.items()},
    }


def act_by(policies: Policies, chosen: PyTree, carry: ByGroup, obs: ByGroup) -> tuple[ByGroup, ByGroup]:
    """What the actors give for lanes that see `obs`: their new memory, and distributions' parameters, by group."""
    memory, outputs = {}, {}
    for name, policy in policies.items():
        given = (chosen["params"][name], chosen["stats"][name], carry[name], policies.seen(name, obs[name]))
        memory[name], outputs[name] = policy.act(*given)
    return memory, outputs


def draw_noise(
    policies: Policies, key: Key[Array, ""], num_envs: int, steps: tuple[int, ...] = ()
) -> dict[str, PyTree[Float[Array, "..."]]]:
    """What actions are drawn from, leaves [*steps, L, ...] by group."""
    return {
        name: policy.distribution.noise(group_key(key, number), (*steps, num_envs * policies.groups[name].size))
        for number, (name, policy) in enumerate(policies.items())
    }


def draw_actions(
    policies: Policies,
    outputs: dict[str, Float[Array, "_ _"]],
    masks: dict[str, PyTree[Bool[AnyArray, "_ ..."]]],
    noise: dict[str, PyTree[Float[Array, "_ ..."]]] | None,
) -> tuple[ByGroup, ByGroup]:
    """Actions by group, in the distributions' own coordinates and as the environment takes them: drawn from `noise`,
    or where that is None the most likely."""
    actions, to_env = {}, {}
    for name, policy in policies.items():
        distribution, given = policy.distribution, (outputs[name], masks[name])
        actions[name] = (
            distribution.mode(*given) if noise is None else distribution.sample(given[0], noise[name], given[1])
        )
        to_env[name] = distribution.to_env(actions[name])
    return actions, to_env
