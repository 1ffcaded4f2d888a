"""When something is due in a run: by its settings and the numbers of updates and steps alone."""

from __future__ import annotations

from dataclasses import dataclass

from proximo.config import Config
from proximo.train.counters import Counters

SCORES = 20
"""How often the policy is judged by its training returns, where there are no evaluations."""


@dataclass(frozen=True)
class Schedule:
    """A function of the settings, so that a run which was stopped and resumed is evaluated after the same updates, and
    keeps the same policies, as one that was not. Only checkpoints may go by the clock too, see `Checkpoints`."""

    config: Config

    def updates_until_event(self, counters: Counters) -> int:
        """Updates to make before something is due, or the run at its end; a chunk may be as long."""
        config, updates = self.config, counters.updates
        every = config.eval.frequency or self._score_every
        waits = [every - updates % every, config.num_updates - updates]  # filler steps may leave some to do
        waits += [at - updates for at in self.policy_updates() if at > updates]
        if config.checkpoint.every_steps is not None:
            left = config.checkpoint.every_steps - counters.steps % config.checkpoint.every_steps
            waits.append(-(-left // config.frames_per_batch))
        return max(1, min(waits))

    def evaluation_due(self, updates: int) -> bool:
        frequency = self.config.eval.frequency
        return bool(frequency) and updates % frequency == 0

    def score_due(self, updates: int) -> bool:
        """Whether training returns judge the policy now, where there are no evaluations."""
        return not self.config.eval.frequency and updates % self._score_every == 0

    def checkpoint_due(self, steps: int, saved_steps: int) -> bool:
        """Whether the steps since the last checkpoint are enough for another."""
        every = self.config.checkpoint.every_steps
        return every is not None and steps // every > saved_steps // every

    def policies_due(self, updates: int) -> list[str]:
        """The names of the policies that are kept as they are now."""
        return [f"pi_ckpt{number}" for number, at in enumerate(self.policy_updates(), 1) if at == updates]

    def policy_updates(self) -> list[int]:
        """The updates after which a policy is kept: evenly spaced over the run, the last one at its end."""
        number, total = self.config.checkpoint.num_checkpoints, self.config.num_updates
        return sorted({max(1, round(total * i / number)) for i in range(1, number + 1)})

    @property
    def _score_every(self) -> int:
        return max(1, self.config.num_updates // SCORES)
