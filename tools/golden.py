"""Golden runs: sixteen short trainings whose numbers must not change where a change is meant to keep results.

    python tools/golden.py record /tmp/before.json        before a change
    python tools/golden.py compare /tmp/before.json       after it, on the same machine

Hashed are, column by column, the rows of `metrics.jsonl` (without times), the arrays in each model file, and the final
evaluation. Arrays are compared as a set, so renamed parameters are no difference; metrics that are new or gone are
listed, and only the ones that differ make `compare` exit with 1. Bits differ between machines and versions of JAX, so
the file of hashes is not kept in the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PROXIMO_MLFLOW"] = "0"

import gymnasium
import numpy as np
from gymnasium import spaces
from safetensors.numpy import load_file

from proximo import PPOTrainer

SMALL: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    epochs_per_update=2,
    total_timesteps=320,
    eval_frequency=2,
    eval_episodes=3,
    num_checkpoints=2,
    hidden_sizes=[16],
    # What was the default when the first hashes were recorded: other defaults must not change these runs.
    learning_rate=3e-4,
    learning_rate_schedule="constant",
    entropy_coef=0.01,
    normalize_observations=False,
    normalize_rewards=False,
    layer_norm=False,
    continuous="gaussian",
)


class Mixed(gymnasium.Env[Any, Any]):
    """A dictionary to see, a dictionary to do, a mask in `info`; ends by its own random numbers."""

    observation_space = spaces.Dict(
        {
            "grid": spaces.Box(0, 255, (6, 6, 1), np.uint8),
            "kind": spaces.Discrete(3),
            "speed": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3),
            "push": spaces.Box(-1.0, 4.0, (2,), np.float32),
            "switches": spaces.MultiDiscrete([2, 3]),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, info = self._seen()
        ended = bool(self.np_random.random() < 0.1)
        reward = float(action["move"] == obs["kind"]) + 0.1 * float(action["push"].sum())
        return obs, reward, ended, not ended and bool(self.np_random.random() < 0.05), info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        draw = self.np_random
        obs = {
            "grid": draw.integers(0, 256, (6, 6, 1), np.uint8),
            "kind": np.int64(draw.integers(3)),
            "speed": draw.normal(0, 5, 2).astype(np.float32),
        }
        allowed = np.array([True, draw.random() < 0.5, True])
        return obs, {"action_mask": {"move": allowed, "switches": (np.ones(2, bool), np.array([True, False, True]))}}


class Frames(gymnasium.Env[Any, Any]):
    """Small images, several discrete actions at once."""

    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        return self._seen(), float(action[0] == 1), False, self.clock == 11, {"is_success": bool(action[1])}

    def _seen(self) -> Any:
        return self.np_random.integers(0, 256, (12, 12, 3), np.uint8)


RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "compiled": ("gymnax/CartPole-v1", dict(learning_rate_schedule="linear", target_kl=0.02, clip_value=0.2)),
    "compiled-gaussian": ("gymnax/Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True)),
    "compiled-beta": (
        "gymnax/Pendulum-v1",
        dict(continuous="beta", optimizers="separate", learning_rate_schedule="adaptive"),
    ),
    "compiled-lstm": ("gymnax/Acrobot-v1", dict(memory="lstm", torso="shared", max_steps_per_episode=30)),
    "compiled-masks": ("jumanji/Maze-v0", dict(max_steps_per_episode=20)),
    "compiled-images": ("gymnax/Breakout-MinAtar", dict(layer_norm=True, clip_epsilon_schedule="cosine")),
    "compiled-stack": ("gymnax/CartPole-v1", dict(frame_stack=3, memory="gru", normalize_observations=True)),
    "host": ("CartPole-v1", dict(workers=0, entropy_coef_schedule="linear", max_grad_norm=None)),
    "host-workers": ("CartPole-v1", dict(workers=2, memory="gru", frame_stack=2)),
    "host-gaussian": (
        "Pendulum-v1",
        dict(workers=1, continuous="tanh_gaussian", std="state", normalize_rewards=True, max_steps_per_episode=25),
    ),
    "host-mixed": (Mixed, dict(workers=2, embed=4, normalize_observations=True, memory="lstm")),
    "host-images": (Frames, dict(workers=0, torso="shared", clip_rewards=0.5)),
    "agents-shared": ("jaxmarl/MPE_simple_spread_v3", dict(identity=True, minibatch_size=96)),
    "agents-central": (
        "jaxmarl/MPE_simple_tag_v3",
        dict(critic="central", agents_policy="groups", normalize_observations=True),
    ),
    "agents-host": (
        "pettingzoo/mpe2.simple_spread_v3",
        dict(workers=2, memory="gru", agents_reward="team", agents_policy="independent"),
    ),
    "agents-selfplay": (
        "pettingzoo/classic.tictactoe_v3",
        dict(workers=0, selfplay=0.5, selfplay_every=2, selfplay_pool=3),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="some of the runs", metavar="RUN")
    given = parser.parse_args()
    hashes = {name: hashed_run(name) for name in given.only}
    if given.what == "record":
        given.file.write_text(json.dumps(hashes, indent=1) + "\n")
        return
    before = json.loads(given.file.read_text())
    differing = [name for name in given.only if not report(name, before.get(name), hashes[name])]
    print(f"{len(given.only) - len(differing)} of {len(given.only)} runs have the same bits")
    sys.exit(bool(differing))


def hashed_run(name: str) -> dict[str, dict[str, str]]:
    """Train one of the runs; the hashes of what it left behind, by part and name."""
    env, own = RUNS[name]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        PPOTrainer(env, out=path, preset=False, **(SMALL | own)).train()
        found = hashed(path)
    print(f"{name}: {len(found['metrics'])} metrics, {time.monotonic() - started:.0f} s", flush=True)
    return found


def hashed(run: Path) -> dict[str, dict[str, str]]:
    """The hashes of a run's folder."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row if not name.startswith("time/")}
    result = json.loads((run / "result.json").read_text())
    return {
        "metrics": {name: sha(json.dumps([row.get(name) for row in rows])) for name in sorted(names)},
        "models": {file.name: file_sha(file) for file in sorted((run / "models").iterdir())},
        "final": {name: sha(json.dumps(value)) for name, value in sorted((result["final_eval"] or {}).items())},
    }


def file_sha(file: Path) -> str:
    """Of the arrays in a file, whatever they are called."""
    arrays = load_file(file).values()
    return sha(*sorted(sha(f"{array.dtype}{array.shape}{array.tobytes().hex()}") for array in arrays))


def sha(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def report(name: str, before: dict[str, dict[str, str]] | None, after: dict[str, dict[str, str]]) -> bool:
    """Print how a run differs from before; whether it has the same bits."""
    if before is None:
        print(f"{name}: was not recorded")
        return False
    same = True
    for part, now in after.items():
        then = before[part]
        differing = [key for key in then if key in now and now[key] != then[key]]
        found = {"differ": differing, "gone": sorted(then.keys() - now), "new": sorted(now.keys() - then)}
        for verb, names in found.items():
            if names:
                print(f"{name}: {part} {verb}: {', '.join(names)}")
        same &= not differing
    return same


if __name__ == "__main__":
    main()
