"""A policy with its parameters: what acts, and what is saved as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo import settings
from proximo._version import __version__
from proximo.compile import cached, jit, key_of, prepare_backend
from proximo.config import Config
from proximo.errors import UserError
from proximo.hints import AGENT_METHODS, HintsAtNames
from proximo.policy.custom_networks import Own, as_own, own_parts
from proximo.policy.normalize import RunningStats, initial_stats
from proximo.policy.policy import ALL, Policy, part_of, shared_policy
from proximo.policy.policy import OWN as OWN_OBS
from proximo.policy.recurrent import forget
from proximo.policy.spaces import LARGEST_ACTION, space_from_json, space_to_json
from proximo.policy.torch_export import write_state_dict
from proximo.run_dir import tensors
from proximo.seeding import network_key
from proximo.spaces import cast, mask_shape, to_mask
from proximo.types import PyTree

NETWORKS = (["actor", "critic"], ["actor"], ["critic"])
"""What a file may hold."""
OWN = (
    "Its networks are not built-in ones: hand in again what they were made with, as `network=` of PPOAgent.load or "
    "PPOTrainer.resume"
)
OWN_DISTRIBUTION = (
    "Its distribution of actions is not a built-in one: hand in again what made it, as `distribution=` of "
    "PPOAgent.load or PPOTrainer.resume"
)


class PPOAgent(HintsAtNames):
    """Acts on observations and says what they are worth.

        agent = PPOAgent.load("runs/.../models/final_actor.safetensors")
        action = agent.act(obs)          # one observation, or a batch of them

    A saved file holds networks, spaces, statistics and settings, and needs nothing else to be loaded; networks of your
    own (`network`, see docs/networks.md), or a `distribution`, are the exception: they are handed in again.

    A new one is made for a pair of spaces, or, for vectors and discrete actions, for two sizes:
    `PPOAgent(observation_dim=4, action_dim=2)`.
    """

    _others = AGENT_METHODS

    def __init__(
        self,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        config: Config | None = None,
        params: PyTree = None,
        obs_stats: PyTree = None,
        network: Any = None,
        critic_space: spaces.Space[Any] | None = None,
        reward_stats: RunningStats | None = None,
        policy: Policy | None = None,
        *,
        observation_dim: int | None = None,
        action_dim: int | None = None,
        distribution: Any = None,
    ):
        prepare_backend()
        network = own_parts(network, distribution)
        self.by_sizes = observation_space is None
        """Whether it was made for sizes: the environment that it is trained on says more, see `fit`."""
        if observation_space is None or action_space is None:
            observation_space, action_space = _sized(observation_space, action_space, observation_dim, action_dim)
        elif observation_dim is not None or action_dim is not None:
            raise UserError("Spaces already have sizes; give PPOAgent either spaces or observation_dim and action_dim.")
        self.config = config or Config()
        self.network = network
        """What was handed in instead of built-in networks, or of a built-in distribution."""
        self.role: dict[str, Any] | None = None
        """Of one of many agents: its group, and who is in it."""
        given = (observation_space, action_space, self.config.network, self.config.normalize)
        self._follow(policy or shared_policy(*given, network, critic_space))
        self.params = self._fresh() if params is None else params
        self.obs_stats = self.policy.initial_stats() if obs_stats is None else obs_stats
        self.reward_stats = reward_stats
        """With `normalize.rewards` those of the rewards that the critic learned from: they say what its unit is."""
        if params is None and reward_stats is None and self.config.normalize.rewards:
            self.reward_stats = initial_stats(())
        self._key = jax.random.key(self.config.seed)

    def _follow(self, policy: Policy) -> None:
        self.policy = policy
        self._act = jit(self._act_batch, static_argnames="deterministic")
        self._value = jit(policy.value)
        self._memory: dict[str, PyTree] = {}

    def fit(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Take over an environment's spaces, with its bounds and types, if this agent was made for sizes alone and
        they are the same. The networks stay as they are."""
        alike = isinstance(observation_space, spaces.Box) and isinstance(action_space, spaces.Discrete)
        sizes = (self.policy.observation_space.shape, getattr(self.policy.action_space, "n", None))
        if not self.by_sizes or not alike or sizes != (observation_space.shape, getattr(action_space, "n", None)):
            return
        given = (observation_space, action_space, self.config.network, self.config.normalize)
        self._follow(shared_policy(*given, self.network))
        self.by_sizes = False

    def _fresh(self) -> PyTree:
        init = cached(key_of("init", self.policy.key), lambda: jit(self.policy.init))
        return init(network_key(self.config.seed))

    def reset(self, ended: Any = None) -> None:
        """Forget, where episodes begin: all of them, or of a batch those where `ended` is true. Only an agent with
        memory has anything to forget."""
        if ended is None:
            self._memory = {}
            return
        flags = np.atleast_1d(np.asarray(ended, bool))
        for name, memory in self._memory.items():
            if len(flags) != (rows := len(jax.tree.leaves(memory)[0])):
                raise UserError(f"`ended` must say it for each of the {rows} rows of the batch, not for {len(flags)}.")
            self._memory[name] = forget(memory, jnp.asarray(flags))

    def act(self, obs: PyTree, deterministic: bool = True, action_mask: PyTree = None) -> Any:
        """The action for one observation or a batch, as the environment takes it.

        An agent with memory remembers from call to call; `reset` tells it where episodes begin.

        `action_mask` is true for allowed actions: as the environment gives it, or with a batch axis for a batch. An
        observation's own entry "action_mask" is used where the observation space has none of that name.
        """
        self._need("actor", "act")
        batch, single = self.policy.adapter.batch(obs)
        mask = self._mask(obs, action_mask, None if single else jax.tree.leaves(batch)[0].shape[0])
        self._key, key = jax.random.split(self._key)
        given = (self.params, self.obs_stats, self._remembered("actor", batch), batch, mask, key)
        memory, action = self._act(*given, deterministic)
        self._remember("actor", memory)
        action = jax.device_get(action)
        return cast(self.policy.action_space, action, single)

    def value(self, obs: PyTree, critic_state: PyTree = None) -> Any:
        """The critic's estimate of the discounted return from one observation (a number) or a batch (an array), in
        the environment's units; of rewards as they are clipped to learn from (`normalize.clip_rewards`).

        It has a memory of its own: with memory, ask for each observation, in order. A critic that sees more than its
        actor takes that as `critic_state`: what the environment says of itself, or with `agents.critic=central`
        perhaps the observations of all agents, by agent.
        """
        self._need("critic", "value")
        if (critic_state is None) != (self.policy.critic_space is None):
            wanted = "sees nothing besides" if critic_state is not None else "sees more than that, its `critic_state`"
            raise UserError(f"`value` takes an observation, and this critic {wanted}.")
        if self.config.normalize.rewards and self.reward_stats is None:
            raise UserError(
                "This agent learned from normalised rewards, and has no statistics of them (files of earlier versions "
                "hold none), so the unit of its values is not known; PPOTrainer.resume(run).agent has them."
            )
        batch, single = self.policy.critic_adapter.batch(self.policy.judged(obs, critic_state))
        held = self._remembered("critic", batch)
        seen = (batch, None) if critic_state is None else (batch[OWN_OBS], batch[ALL])
        memory, value = self._value(self.params, self.obs_stats, held, *seen, self.reward_stats)
        self._remember("critic", memory)
        value = np.asarray(value)
        return float(value[0]) if single else value

    def _remembered(self, name: str, batch: PyTree) -> PyTree:
        """The memory [B, ...] of one network; empty at the start, and where the batch has another size than before."""
        rows = jax.tree.leaves(batch)[0].shape[0]
        held = self._memory.get(name)
        if held is None or jax.tree.leaves(held)[0].shape[0] != rows:
            return self.policy.initial_carry(rows)[name]
        return held

    def _remember(self, name: str, memory: PyTree) -> None:
        if self.policy.recurrent:
            self._memory[name] = memory

    def save(self, path: str | Path) -> Path:
        """Write everything to one file; `load` gives an equal agent back."""
        return self._save(path, ("actor", "critic"))

    def save_policy_net(self, path: str | Path) -> Path:
        """Write the actor alone: enough to act."""
        return self._save(path, ("actor",))

    def save_value_net(self, path: str | Path) -> Path:
        """Write the critic alone: enough for `value`."""
        return self._save(path, ("critic",))

    @classmethod
    def load(cls, path: str | Path, network: Any = None, distribution: Any = None) -> PPOAgent:
        """The agent in a file that `save` (or training) wrote. Reading a file never runs code from it.

        `network` and `distribution` are what the agent was made with, where these were not built-in ones.
        """
        path = Path(path)
        if path.suffix == ".pth":
            raise UserError(
                f"{path} is a PyTorch state dict: weights without the spaces and settings that they belong to. Load "
                f"the .safetensors file that is saved beside it, or read the weights with torch.load."
            )
        if path.suffix != ".safetensors" and not os.path.exists(path):  # false also where that cannot be told
            path = path.with_name(path.name + ".safetensors")
        return cls.from_tensors(*tensors.read(path, "policy"), path, own_parts(network, distribution))

    @classmethod
    def from_tensors(cls, given: tensors.Tensors, meta: dict[str, Any], path: Path, network: Any = None) -> PPOAgent:
        """The agent that `tensors` and `meta`, as `describe` made it, from the file `path` describe."""
        try:
            networks = meta["networks"]
            if networks not in NETWORKS:
                raise UserError(f"It should hold an actor, a critic or both, not {networks}.")
            seen = space_from_json(meta["observation_space"])
            done = space_from_json(meta["action_space"], LARGEST_ACTION)
            config = settings.build(settings.from_mapping(meta["config"], "its settings"))
            role = _role(meta.get("team"))
            _check_own(meta, as_own(network))
            if as_own(network).network is None and len(config.network.hidden_sizes) > len(given):
                raise UserError(f"Its settings name {len(config.network.hidden_sizes)} layers, which it does not hold.")
            central = meta.get("critic_space")
            judged = None if central is None else space_from_json(central)
            policy = Policy(seen, done, config.network, config.normalize, network, judged)
            # Shapes alone: nothing is made as large as a file says before the file turns out to be as large.
            params, stats = jax.eval_shape(lambda key: (policy.init(key), policy.initial_stats()), network_key(0))
            types = {"params": part_of(params, *networks), "obs_stats": stats}
            # Files of earlier versions have none, and serve to act.
            if config.normalize.rewards and any(name.startswith("reward_stats/") for name in given):
                types["reward_stats"] = initial_stats(())
        except UserError as error:
            raise UserError(f"{path} cannot be used: {tensors.in_words(error)}.") from None
        except Exception as error:  # whatever nonsense can lead to; a user's own code wants to be looked at
            raise UserError(f"{path} describes no policy ({type(error).__name__}: {tensors.in_words(error)}).") from (
                None if network is None else error
            )
        parts = tensors.filled(types, given, path)
        held = (parts["params"], parts["obs_stats"], network, judged, parts.get("reward_stats"))
        agent = cls(seen, done, config, *held)
        agent.role = role
        return agent

    def describe(self) -> dict[str, Any]:
        """Everything about this agent that is not an array, as JSON."""
        critic_space = self.policy.critic_space
        return {
            "networks": self.networks,
            **{f"own_{part}": True for part, given in as_own(self.network)._asdict().items() if given is not None},
            **({} if self.role is None else {"team": self.role}),
            **({} if critic_space is None else {"critic_space": space_to_json(critic_space)}),
            "observation_space": space_to_json(self.policy.observation_space),
            "action_space": space_to_json(self.policy.action_space, LARGEST_ACTION),
            "config": settings.to_mapping(self.config),
            "version": __version__,
        }

    @property
    def networks(self) -> list[str]:
        """What there is: a file may hold an actor or a critic alone."""
        return [name for name in ("actor", "critic") if name in self.params]

    def _mask(self, obs: PyTree, given: PyTree, num_rows: int | None) -> NDArray[Any] | None:
        """The mask [B, ...] that the distribution takes, for `num_rows` observations or for a single one (None)."""
        space = self.policy.action_space
        if given is None and isinstance(obs, Mapping) and mask_shape(space)[0]:
            known = self.policy.observation_space
            given = None if "action_mask" in getattr(known, "spaces", ()) else obs.get("action_mask")
        if given is None:
            return None
        try:
            rows = [given] if num_rows is None else _rows(given, space, num_rows)
            mask = np.stack([to_mask(space, row) for row in rows])
        except ValueError as error:
            raise UserError(f"This action mask does not fit: {error}.") from None
        return mask if mask.size else None

    def _act_batch(
        self,
        params: PyTree,
        stats: PyTree,
        memory: PyTree,
        obs: PyTree,
        mask: PyTree,
        key: jax.Array,
        deterministic: bool,
    ) -> tuple[PyTree, PyTree]:
        distribution = self.policy.distribution
        memory, outputs = self.policy.act(params, stats, memory, obs)
        if deterministic:
            return memory, distribution.to_env(distribution.mode(outputs, mask))
        noise = distribution.noise(key, (outputs.shape[0],))
        return memory, distribution.to_env(distribution.sample(outputs, noise, mask))

    def _need(self, network: str, verb: str) -> None:
        if network not in self.params:
            held = " and ".join(self.networks)
            raise UserError(f"This agent was saved with its {held} only; `{verb}` needs the {network}.")

    def _save(self, path: str | Path, networks: tuple[str, ...]) -> Path:
        for network in networks:
            self._need(network, "save")
        params = part_of(self.params, *networks)
        stats = {"obs_stats": self.obs_stats, "reward_stats": self.reward_stats if "critic" in networks else None}
        path = Path(path)
        if path.suffix == ".pth":
            write_state_dict(path, params | stats)
            return path
        if path.suffix != ".safetensors":
            path = path.with_name(path.name + ".safetensors")
        named = tensors.named({"params": params} | stats)
        tensors.write(path, "policy", named, self.describe() | {"networks": list(networks)})
        return path


def _check_own(meta: dict[str, Any], own: Own) -> None:
    """Refuse to load without what was handed in, or with more."""
    if bool(meta.get("own_network")) != (own.network is not None):
        raise UserError(OWN if own.network is None else "Its networks are built-in ones: hand in none of your own.")
    if bool(meta.get("own_distribution")) != (own.distribution is not None):
        more = "Its distribution of actions is a built-in one: hand in none of your own."
        raise UserError(OWN_DISTRIBUTION if own.distribution is None else more)


PPOClip = PPOAgent
"""The name that an agent has elsewhere."""


def _sized(
    observation_space: spaces.Space[Any] | None,
    action_space: spaces.Space[Any] | None,
    seen: int | None,
    done: int | None,
) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The spaces of vectors with `seen` numbers and of `done` discrete actions."""
    if observation_space is not None or action_space is not None or seen is None or done is None:
        raise UserError(
            "PPOAgent needs an observation space and an action space, or for vectors and discrete actions "
            "observation_dim and action_dim, such as PPOAgent(observation_dim=4, action_dim=2)."
        )
    for name, size in (("observation_dim", seen), ("action_dim", done)):
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise UserError(f"{name} must be a whole number of at least 1, not {size!r}.")
    return spaces.Box(-np.inf, np.inf, (int(seen),), np.float32), spaces.Discrete(int(done))


def _role(given: Any) -> dict[str, Any] | None:
    """The place of one of many agents, as `Agents` writes it."""
    if given is None:
        return None
    names = [given["group"], *given["agents"], *given["groups"]]
    if not all(isinstance(name, str) for name in names) or given["group"] not in given["groups"]:
        raise UserError("Its group is not one of the groups that it names.")
    return {"group": given["group"], "agents": list(given["agents"]), "groups": list(given["groups"])}


def _rows(given: PyTree, space: spaces.Space[Any], num_rows: int) -> list[PyTree]:
    """A batch of masks, one by one; nested ones have the batch axis in every entry."""
    nested = isinstance(given, dict | tuple) and isinstance(space, spaces.Dict | spaces.Tuple)
    given = jax.tree.map(np.asarray, given) if nested else np.asarray(given)
    for leaf in jax.tree.leaves(given):
        if leaf.shape[:1] != (num_rows,):
            raise ValueError(f"for {num_rows} observations there must be as many masks, not the shape {leaf.shape}")
    return [jax.tree.map(lambda leaf: leaf[row], given) for row in range(num_rows)]  # noqa: B023
