"""Which defaults hold on environments that nobody has seen: candidates, and Stable-Baselines3's defaults beside them.

    python bench/defaults.py train --round 1               the candidates of a round, on the half for choosing
    python bench/defaults.py train --half judge --only documents --seeds 5
    python bench/defaults.py sb3 --half judge --seeds 5    Stable-Baselines3's defaults, as many steps
    python bench/defaults.py presets                       presets against the chosen values, each where it is for
    python bench/defaults.py table --half choose           how candidates compare so far
    python bench/defaults.py report                        writes docs/defaults.md and docs/defaults/summary.json

`bench/defaults.yaml` names environments, budgets and candidates. Each run that is done appends a line to
`docs/defaults/results.jsonl` (of presets: `presets.jsonl`); what stands there is never trained again, so every command
goes on where it was stopped.
A score is the mean return of the final policy over 20 deterministic episodes (10 on the half for choosing), on
environments of their own. Scores do not depend on processes and threads, so each run stays on one core, to share a
machine well, and is timed like that: by the clock, and in processor seconds, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PROXIMO_MLFLOW"] = "0"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import gymnasium
import numpy as np

from defaults_plan import ENVIRONMENTS, PLAN, PRESETS, RESULTS, Settings, candidates, results, settings_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # where raw_units is found, in worker processes too
SB3 = "Stable-Baselines3"
EPISODES = {"choose": 10, "judge": 20}
SPACING = 100_000
"""Between seeds: environment i of a run has its seed + i."""


def digest(values: Settings) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def keep(row: dict[str, Any], path: Path) -> None:
    """Append one line, whole, however many processes do so."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row) + "\n")


def todo(names: list[str], half: str, seeds: int, only_envs: list[str] | None) -> Iterator[tuple[str, str, int]]:
    """What is not trained yet; with each seed all environments, so that what is there at any time is balanced."""
    done = {(row["candidate"], row["env"], row["seed"]) for row in results()}
    for name, seed, (env, about) in itertools.product(names, range(0, seeds * SPACING, SPACING), ENVIRONMENTS.items()):
        kind = None if name == SB3 else candidates()[name][0]
        fits = about["half"] == half and kind in (None, about["action"]) and (not only_envs or env in only_envs)
        if fits and (name, env, seed) not in done:
            yield name, env, seed


def presets_todo(only_envs: list[str] | None) -> Iterator[tuple[str, str, int]]:
    """What of the presets is not trained yet, environment by environment."""
    done = {(row["candidate"], row["env"], row["seed"]) for row in results(PRESETS)}
    for env, about in PLAN["presets"].items():
        for run in itertools.product(("preset", "defaults"), [env], range(0, about["seeds"] * SPACING, SPACING)):
            if run not in done and (not only_envs or env in only_envs):
                yield run


def preset_settings(env: str) -> Settings:
    """What the preset for `env` says of how to train; for how long, and when to stop, is the comparison's."""
    from proximo.presets import find_preset

    return {path: value for path, value in find_preset(env).items() if not path.startswith(("train.", "stop."))}


def train_all(runs: Iterator[tuple[str, str, int]], path: Path = RESULTS) -> None:
    """Train and keep; a run that fails is reported, and the others go on."""
    for name, env, seed in runs:
        about = ENVIRONMENTS[env] if path == RESULTS else PLAN["presets"][env]
        try:
            if name == SB3:
                row = train_sb3(env, about, seed)
            elif name == "preset":
                row = train_proximo(env, about, seed, preset_settings(env))
            else:
                values = settings_of(PLAN["chosen"] if name == "defaults" else name, about["action"])
                row = train_proximo(env, about, seed, values)
        except Exception:
            print(f"{name} on {env}, seed {seed}, failed:\n{traceback.format_exc()}", flush=True)
            continue
        keep({"candidate": name, "env": env, "seed": seed} | row, path)
        print(
            f"{time.strftime('%H:%M:%S')} {name} {env} {seed}: {row['score']:.2f}, {row['seconds']:.1f} s", flush=True
        )


def train_proximo(env: str, about: dict[str, Any], seed: int, values: Settings) -> dict[str, Any]:
    from proximo import PPOTrainer
    from proximo.train import finish
    from proximo.train.active_run import ActiveRun

    finish.write_plots = lambda *_: []  # pictures of hundreds of runs take longer than training them
    shared = {
        "train.total_timesteps": about["steps"],
        "eval.frequency": 0,
        "eval.episodes": EPISODES[about.get("half", "judge")],
        "eval.max_steps": 2_000,
        "env.max_steps_per_episode": about.get("max_steps"),
        "checkpoint.num_checkpoints": 0,
        "seed": seed,
        "env.workers": 1 if env.startswith("envpool/") else 0,
    }
    began, cpu = time.perf_counter(), cpu_seconds()
    ended: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(env, config=values | shared, preset=False, out=Path(folder) / "run")
        end = ActiveRun.finish

        def timed(run: Any) -> Any:
            ended.append((time.perf_counter(), cpu_seconds()))
            return end(run)

        with mock.patch.object(ActiveRun, "finish", timed):
            result = trainer.train()
        rows = [json.loads(line) for line in (trainer.path / "metrics.jsonl").read_text().splitlines()]

    if trainer.interrupted_by is not None:
        sys.exit(128 + trainer.interrupted_by)
    played = result["final_eval"]
    return {
        "score": played["return_mean"],
        "std": played["return_std"],
        "steps": result["total_steps"],
        "seconds": round(ended[0][0] - began, 2),
        "cpu_seconds": round(ended[0][1] - cpu, 2),
        "settings": digest(values),
        "trained_return": result["final_return"],
        **({"reached_at": reached_at(rows, about["goal"])} if "goal" in about else {}),
    }


def reached_at(rows: list[dict[str, Any]], goal: float) -> int | None:
    """Steps after which the mean return of the last 100 training episodes was first `goal`, if ever."""
    reached = (row["step"] for row in rows if row["episode"] >= 100 and row["recent/return_mean"] >= goal)
    return next(reached, None)


def cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def train_sb3(env: str, about: dict[str, Any], seed: int) -> dict[str, Any]:
    """PPO as Stable-Baselines3 makes it: one environment, all settings its own. One thread is its fastest setting on
    networks this small (bench/host.py tries them)."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    began, cpu = time.perf_counter(), cpu_seconds()
    made = Monitor(as_gymnasium(env, seed, about.get("max_steps")))
    policy = "MultiInputPolicy" if isinstance(made.observation_space, gymnasium.spaces.Dict) else "MlpPolicy"
    model = PPO(policy, made, seed=seed, device="cpu")
    model.learn(about["steps"])
    seconds, spent = time.perf_counter() - began, cpu_seconds() - cpu
    judged = DummyVecEnv([lambda: Monitor(as_gymnasium(env, seed + 999, about.get("max_steps") or 2_000))])
    scores, _ = evaluate_policy(model, judged, EPISODES[about["half"]], deterministic=True, return_episode_rewards=True)
    return {
        "score": float(np.mean(scores)),
        "std": float(np.std(scores)),
        "steps": model.num_timesteps,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(spent, 2),
    }


def as_gymnasium(env: str, seed: int, max_steps: int | None) -> gymnasium.Env[Any, Any]:
    """The environment as Stable-Baselines3 takes it. Images below 36 x 36, which its CNN cannot read, and numbers on
    their own become plain vectors."""
    family, _, name = env.partition("/")
    if family in ("gymnax", "jumanji"):
        made: gymnasium.Env[Any, Any] = Jitted(env, seed)
    elif family == "envpool":
        made = Unbatched(name, env, seed)
    else:
        made = gymnasium.make(env)
    if isinstance(made.observation_space, gymnasium.spaces.Dict):
        made = Vectors(made)
    made.reset(seed=seed)
    return gymnasium.wrappers.TimeLimit(made, max_steps) if max_steps else made


class Vectors(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A dictionary of numbers as one of vectors; texts, which no policy reads, are left out. Names get an end, since
    some (`values`) are taken in the modules of PyTorch."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        spaces, seen = gymnasium.spaces, env.observation_space
        assert isinstance(seen, spaces.Dict)
        self._boxes = {key: space for key, space in seen.items() if isinstance(space, spaces.Box)}
        kept: dict[str, Any] = {key: space for key, space in seen.items() if isinstance(space, spaces.Discrete)}
        vectors = {
            key: spaces.Box(-np.inf, np.inf, (int(np.prod(space.shape)),), np.float32)
            for key, space in self._boxes.items()
        }
        self._names = {f"{key}_": key for key in kept | vectors}
        self.observation_space = spaces.Dict({f"{key}_": space for key, space in (kept | vectors).items()})

    def observation(self, observation: Any) -> Any:
        return {
            name: np.asarray(observation[key], np.float32).reshape(-1) if key in self._boxes else observation[key]
            for name, key in self._names.items()
        }


class Jitted(gymnasium.Env[Any, Any]):
    """A JAX environment, stepped one by one from outside."""

    def __init__(self, env_id: str, seed: int) -> None:
        import jax

        from proximo import envs

        source = envs.make(env_id)
        assert isinstance(source, envs.JaxEnv)
        self.observation_space, self.action_space = source.spec.observation_space, source.spec.action_space
        self._limit, self._jax = source.spec.max_steps, jax

        def step(key: Any, state: Any, action: Any) -> Any:
            key, now = jax.random.split(key)
            state, seen = source.step(now, state, action)
            return key, state, (seen.obs, seen.reward, seen.terminated, seen.truncated)

        def reset(key: Any) -> Any:
            key, now = jax.random.split(key)
            state, seen = source.reset(now)
            return key, state, seen.obs

        self._step, self._reset = jax.jit(step), jax.jit(reset)
        self._key = jax.random.key(seed)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self._key = self._jax.random.key(seed)
        self._key, self._state, obs = self._reset(self._key)
        self._steps = 0
        return self._jax.tree.map(np.asarray, obs), {}

    def step(self, action: Any) -> Any:
        self._key, self._state, seen = self._step(self._key, self._state, action)
        obs, reward, terminated, truncated = self._jax.device_get(seen)
        self._steps += 1
        cut = bool(truncated) or (self._limit is not None and self._steps >= self._limit and not terminated)
        return obs, float(reward), bool(terminated), cut, {}


class Unbatched(gymnasium.Env[Any, Any]):
    """One environment of EnvPool."""

    def __init__(self, name: str, env_id: str, seed: int) -> None:
        import envpool

        from proximo import envs

        spec = envs.make(env_id).spec
        self.observation_space = spec.observation_space
        action = spec.action_space
        assert isinstance(action, gymnasium.spaces.Box)
        self.action_space = gymnasium.spaces.Box(action.low, action.high, action.shape, np.float32)
        self._dtype = action.dtype
        self._pool = envpool.make(name, env_type="gymnasium", num_envs=1, seed=seed)

    def _first(self, obs: Any) -> Any:
        assert isinstance(self.observation_space, gymnasium.spaces.Dict)
        return {key: np.asarray(obs[key][0]) for key in self.observation_space}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        obs, _ = self._pool.reset()
        return self._first(obs), {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self._pool.step(np.asarray(action, self._dtype)[None])
        return self._first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("train", "sb3", "table", "list"):
        sub = commands.add_parser(command)
        sub.add_argument("--half", choices=("choose", "judge"), default="choose")
        sub.add_argument("--round", type=int, help="the candidates of this round")
        sub.add_argument("--only", nargs="+", help="these candidates", metavar="CANDIDATE")
        sub.add_argument("--envs", nargs="+", help="these environments")
        sub.add_argument("--seeds", type=int, default=3)
    commands.add_parser("presets").add_argument("--envs", nargs="+", help="these environments")
    commands.add_parser("report")
    given = parser.parse_args()
    if given.command == "report":
        import defaults_report

        defaults_report.write()
        return
    if given.command == "presets":
        with contextlib.suppress(KeyboardInterrupt):
            train_all(presets_todo(given.envs), PRESETS)
        return
    names = given.only or list(PLAN["rounds"][given.round] if given.round else candidates())
    if given.command == "sb3":
        names = [SB3]
    if given.command == "table":
        import defaults_report

        defaults_report.table(given.half)
        return
    runs = todo(names, given.half, given.seeds, given.envs)
    if given.command == "list":
        for run in runs:
            print(*run)
        return
    with contextlib.suppress(KeyboardInterrupt):
        train_all(runs)


if __name__ == "__main__":
    main()
