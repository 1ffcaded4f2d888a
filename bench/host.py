"""Steps per second on Gymnasium environments: Proximo and Stable-Baselines3, by turns, with the same settings.

    python bench/host.py [--rounds 5]

Each measurement is a process of its own that trains, after a warm-up, for a number of steps. Stable-Baselines3 is
first tried with one and two threads and both of its ways to step environments; the fastest goes by turns with Proximo.
Last, Proximo collects from 16 environments that each sleep 2 ms in a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any
from unittest import mock

SETTINGS: dict[str, Any] = dict(
    rollout_length=128, minibatch_size=256, epochs_per_update=4, num_envs=8, entropy_coef=0.0
)
# For both about ten seconds: the machine may be slow for some of them, and then for both alike.
STEPS = {"proximo": {"CartPole-v1": 8 * 128 * 360, "HalfCheetah-v5": 8 * 128 * 90}}
STEPS["sb3"] = {"CartPole-v1": 8 * 128 * 80, "HalfCheetah-v5": 8 * 128 * 36}
GOALS = {"CartPole-v1": 5.0, "HalfCheetah-v5": 2.0}
WARM_UP = 8 * 128 * 4
SLEEP, SLEEPERS = 2e-3, 16


def proximo(env: str) -> float:
    from proximo import PPOTrainer
    from proximo.train.active_run import ActiveRun

    started: list[tuple[int, float]] = []

    def watch(metrics: dict[str, Any]) -> None:
        if metrics["step"] >= WARM_UP and not started:
            started.append((metrics["step"], time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(
            env,
            preset="documents",
            out=f"{folder}/run",
            total_timesteps=WARM_UP + STEPS["proximo"][env],
            eval_frequency=0,
            eval_episodes=1,
            **SETTINGS,
        )
        ended = []
        finish = ActiveRun.finish

        def timed(run: Any) -> Any:
            ended.append(time.perf_counter())  # before the evaluation
            return finish(run)

        with mock.patch.object(ActiveRun, "finish", timed):
            trainer.train(watch)
    (step, begin), end = started[0], ended[0]
    return (WARM_UP + STEPS["proximo"][env] - step) / (end - begin)


def sb3(env: str, threads: int, subprocesses: bool) -> float:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(threads)
    kind = SubprocVecEnv if subprocesses else DummyVecEnv
    vector = make_vec_env(env, SETTINGS["num_envs"], seed=0, vec_env_cls=kind)
    model = PPO(
        "MlpPolicy",
        vector,
        n_steps=SETTINGS["rollout_length"],
        batch_size=SETTINGS["minibatch_size"],
        n_epochs=SETTINGS["epochs_per_update"],
        policy_kwargs=dict(net_arch=[64, 64]),
        device="cpu",
        seed=0,
    )

    class Watch(BaseCallback):  # type: ignore[misc]
        begin: tuple[int, float] | None = None

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= WARM_UP and self.begin is None:
                self.begin = (self.num_timesteps, time.perf_counter())

    watch = Watch()
    model.learn(WARM_UP + STEPS["sb3"][env], callback=watch)
    assert watch.begin is not None
    step, begin = watch.begin
    rate = (model.num_timesteps - step) / (time.perf_counter() - begin)
    vector.close()
    return float(rate)


def sleepers() -> float:
    """Steps per second while collecting from environments that only wait."""
    import gymnasium
    import numpy as np

    class Sleeper(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(4, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(SLEEP)
            return np.zeros(4, np.float32), 0.0, False, False, {}

    from proximo import PPOTrainer
    from proximo.train.host_program import HostProgram

    trainer = PPOTrainer(
        Sleeper, num_envs=SLEEPERS, rollout_length=128, minibatch_size=256, out=tempfile.mkdtemp() + "/run"
    )
    program = trainer.program
    assert isinstance(program, HostProgram)
    state = program.init(trainer._given())
    program.compile(state)
    packed, noise = program._acting(state)
    rates = []
    for _ in range(6):
        begin = time.perf_counter()
        program._runner.run(packed, state.runner, noise, bool)
        rates.append(SLEEPERS * 128 / (time.perf_counter() - begin))
    trainer.close()
    return statistics.median(rates)


def measured(*arguments: str) -> float:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def title(threads: int, where: str) -> str:
    return f"Stable-Baselines3, {threads} thread{'s' if threads > 1 else ''}, environments in {where}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*GOALS, "sleep"])
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, *rest = options.measure
        rate = {
            "proximo": lambda: proximo(rest[0]),
            "sb3": lambda: sb3(rest[0], int(rest[1]), rest[2] == "processes"),
            "sleep": sleepers,
        }[what]()
        print(json.dumps(rate))
        return
    for env in GOALS:
        if options.only not in (None, env):
            continue
        ways = [(threads, where) for threads in (1, 2) for where in ("process", "processes")]
        tried = {way: measured("--measure", "sb3", env, str(way[0]), way[1]) for way in ways}
        threads, where = best = max(tried, key=lambda way: tried[way])
        for way, rate in tried.items():
            print(f"{env}  {title(*way):60} {rate:9,.0f} steps/s", flush=True)
        pairs = []
        for _ in range(options.rounds):
            theirs = measured("--measure", "sb3", env, str(threads), where)
            pairs.append((measured("--measure", "proximo", env), theirs))
            print(
                f"{env}  by turns: Proximo {pairs[-1][0]:9,.0f}, Stable-Baselines3 {theirs:9,.0f} steps/s", flush=True
            )
        ours, theirs = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        print(f"{env}  medians: Proximo {ours:,.0f}, {title(*best)} {theirs:,.0f} steps/s", end="; ")
        print(f"ratio {ours / theirs:.2f} (goal {GOALS[env]:g})", flush=True)
    if options.only in (None, "sleep"):
        rates = [measured("--measure", "sleep") for _ in range(options.rounds)]
        possible = SLEEPERS / SLEEP
        print(f"16 environments that sleep 2 ms: {statistics.median(rates):,.0f} of {possible:,.0f} steps/s", end="  ")
        print(f"ratio {statistics.median(rates) / possible:.2f} (goal 0.7)  {[round(rate) for rate in rates]}")


if __name__ == "__main__":
    main()
