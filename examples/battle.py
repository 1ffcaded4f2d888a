"""Two armies of twelve learn to fight each other: MAgent2's battle, by self-play. A few minutes on two cores.

    pip install "proximo[magent2,video]"
    python examples/battle.py

All 24 soldiers share one network. In half of the battles one army plays by an earlier policy. The run's folder has the
film of a battle (`videos/`), the win rate against earlier policies (`selfplay/win_rate` in `metrics.jsonl`), and the
policy for each soldier (`models/`).
"""

from pathlib import Path
from typing import Any

from proximo import PPOTrainer

ARMIES = {color: [f"{color}_{number}" for number in range(12)] for color in ("red", "blue")}


def make_battle() -> Any:
    """A fresh battlefield of 20 x 20. Each process that steps battles calls this for each of its own."""
    try:
        from magent2.environments import battle_v4
    except ImportError:
        raise SystemExit('This example needs MAgent2: pip install "proximo[magent2]"') from None
    return battle_v4.parallel_env(map_size=20, max_cycles=150, attack_opponent_reward=1.0, render_mode="rgb_array")


def main(out: str | Path = "runs/battle", **settings: Any) -> dict[str, Any]:
    """Train; returns what `result.json` holds."""
    chosen: dict[str, Any] = dict(
        total_timesteps=30_000,
        num_envs=8,
        rollout_length=64,
        minibatch_size=64,
        epochs_per_update=2,
        learning_rate=5e-4,
        agents_policy="shared",
        selfplay=0.5,
        sides=ARMIES,
        eval_frequency=20,
        eval_episodes=8,
        video=True,
        verbose=True,
    )
    return PPOTrainer(make_battle, out=out, **(chosen | settings)).train()


if __name__ == "__main__":
    main()
