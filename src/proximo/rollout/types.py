"""The record of experience: what an update learns from, what an evaluation counts. T steps, E environments, L lanes."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Bool, Float, Int, Shaped

from proximo.envs.api import reset_mask
from proximo.types import AnyArray, PyTree, Struct


class Rollout(Struct):
    """What happened to the lanes of one group, in time order. Collection fills it whole; the update uses it once.

    The last four are None where agents are never absent and always act.
    """

    obs: PyTree[Shaped[AnyArray, "T L ..."]]
    """What the policy saw."""
    action_mask: PyTree[Bool[AnyArray, "T L ..."]]
    """Or None."""
    action: PyTree[Shaped[AnyArray, "T L ..."]]
    """In the distribution's own coordinates."""
    reward: Float[AnyArray, "T L"]
    terminated: Bool[AnyArray, "T L"]
    truncated: Bool[AnyArray, "T L"]
    valid: Bool[AnyArray, "T L"]
    """This action counted."""
    final_obs: PyTree[Shaped[AnyArray, "T L ..."]]
    """Where each truncated step led; elsewhere anything finite."""
    last_obs: PyTree[Shaped[AnyArray, "L ..."]]
    """What the policy sees next."""
    carry: PyTree[Shaped[AnyArray, "L ..."]]
    """The actor's memory at the start."""
    present: Bool[AnyArray, "T L"] | None = None
    """There when the step was taken."""
    alive: Bool[AnyArray, "T L"] | None = None
    """There after it."""
    acts: Bool[AnyArray, " L"] | None = None
    """Whose next action counts."""
    settled: Bool[AnyArray, "T L"] | None = None
    """Whether what came of an action is known (`multi_agent.prepare`)."""

    @property
    def ended(self) -> Bool[AnyArray, "T L"]:
        return self.terminated | self.truncated

    @property
    def reset_mask(self) -> Bool[AnyArray, "T L"]:
        """After which steps memory is empty."""
        return reset_mask(self)


class Episodes(Struct):
    """The episodes that finished during a rollout, at the step where each did."""

    length: Int[AnyArray, "*T E"]
    """0 where none finished."""
    episode_return: Float[AnyArray, "*T E"]
    """The sum of its rewards; of several agents, the mean of theirs."""
    success: Bool[AnyArray, "*T E"]
    members: Mapping[str, Float[AnyArray, "*T E _"]]
    """[T, E, K] the sums of each agent, by group."""
    score: Float[AnyArray, "*T E"] | None = None
    """With self-play: 1 won, 1/2 drawn, 0 lost; -1 without opponents."""
    info: Float[AnyArray, "*T E I"] | None = None
    """Of what is tracked of infos, the last value in the episode; NaN where there was none. None: nothing is."""
    info_mean: Float[AnyArray, "*T E I"] | None = None
    """And the mean over its steps, of those that had one."""


class CriticState(Struct):
    """What only critics see, one for each environment: stored once, whatever the number of agents."""

    seen: PyTree[Shaped[AnyArray, "T E ..."]]
    """Before each step."""
    final: PyTree[Shaped[AnyArray, "T E ..."]]
    """Where each step led."""
    last: PyTree[Shaped[AnyArray, "E ..."]]
    """After the rollout."""


class Experience(Struct):
    """A rollout of all groups."""

    groups: dict[str, Rollout]
    critic_state: CriticState | None
    episodes: Episodes


class RunningInfo(Struct):
    """What is tracked of infos (`track.info`), in the running episodes."""

    last: Float[AnyArray, "E I"]
    """NaN while there was none."""
    total: Float[AnyArray, "E I"]
    count: Int[AnyArray, "E I"]
    """Steps that had one."""


class RunnerState(Struct):
    """Where the environments stand between two rollouts."""

    env: PyTree
    """The state of compiled environments; empty for others."""
    task: PyTree[Shaped[AnyArray, "E ..."]]
    """What a curriculum asks of each environment, or None."""
    obs: dict[str, PyTree[Shaped[AnyArray, "_ ..."]]]
    """[L, ...] what the policies see next: with `env.frame_stack`, the stack."""
    action_mask: dict[str, PyTree[Bool[AnyArray, "_ ..."]]]
    """[L, ...] or None."""
    carry: dict[str, PyTree[Shaped[AnyArray, "_ ..."]]]
    """[L, ...] the actors' memory."""
    critic_state: PyTree[Shaped[AnyArray, "E ..."]]
    """What critics see besides, or None."""
    episode_length: Int[AnyArray, " E"]
    """Steps in the running episode."""
    episode_return: dict[str, Float[AnyArray, "E _"]]
    """[E, K] rewards in the running episode."""
    episode_info: RunningInfo | None = None
    """What was tracked of infos in the running episode; None where nothing is."""
