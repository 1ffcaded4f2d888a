"""Packages from PyPI that nobody here wrote: how each is trained by id, and by a factory as its README makes one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Package:
    """One package, and an environment of it."""

    name: str
    """As PyPI has it."""
    module: str
    env_id: str
    steps: int
    make: Callable[[], Any]
    """The same environment, made in Python."""
    flags: tuple[str, ...] = ()
    """What the command takes besides the id and the steps."""
    max_steps_per_episode: int | None = None
    """For one whose episodes need not end."""
    learns: bool = True
    """Whether so few steps show that the policy gets better."""
    prepare: Callable[[Path], None] = lambda folder: None
    """Writes the files that the environment reads, into the current folder."""


def gymnasium_make(env_id: str, **kwargs: Any) -> Any:
    return import_module("gymnasium").make(env_id, **kwargs)


def weighed() -> Any:
    return import_module("mo_gymnasium.wrappers").LinearReward(gymnasium_make("mo_gymnasium:deep-sea-treasure-v0"))


def simple() -> Any:
    return import_module("mpe2.simple_v3").parallel_env()


def battle() -> Any:
    return import_module("magent2.environments.battle_v4").parallel_env(map_size=12, max_cycles=50)


def write_prices(folder: Path) -> None:
    """Hourly prices that go up and down in waves, as gym-trading-env reads them."""
    pandas = import_module("pandas")
    (folder / "prices").mkdir()
    for phase in range(4):
        close = [100 + 10 * math.sin(hour / 8 + phase) for hour in range(300)]
        index = pandas.date_range("2024-01-01", periods=len(close), freq="h")
        prices = pandas.DataFrame({"open": close, "high": close, "low": close, "close": close}, index=index)
        prices["feature_change"] = 100 * prices["close"].pct_change()
        prices.dropna().to_pickle(folder / "prices" / f"wave{phase}.pkl")


ROAD = {"vehicles_count": 3, "duration": 20, "simulation_frequency": 5}
PRICES = "prices/*.pkl"

PACKAGES = [
    Package(
        "flappy-bird-gymnasium",
        "flappy_bird_gymnasium",
        "flappy_bird_gymnasium:FlappyBird-v0",
        30_000,
        partial(gymnasium_make, "flappy_bird_gymnasium:FlappyBird-v0", use_lidar=False),
        ("--env-arg", "use_lidar=false"),
    ),
    Package(
        "gym-anytrading",
        "gym_anytrading",
        "gym_anytrading:stocks-v0",
        20_000,
        partial(gymnasium_make, "gym_anytrading:stocks-v0", frame_bound=(50, 300), window_size=10),
        ("--env-arg", "frame_bound=[50, 300]", "--env-arg", "window_size=10"),
    ),
    Package(
        "gym-electric-motor",
        "gym_electric_motor",
        "gym_electric_motor:Finite-CC-PermExDc-v0",
        20_000,
        partial(gymnasium_make, "gym_electric_motor:Finite-CC-PermExDc-v0"),
        max_steps_per_episode=500,
    ),
    Package(
        "gym-simplegrid",
        "gym_simplegrid",
        "gym_simplegrid:SimpleGrid-4x4-v0",
        20_000,
        partial(gymnasium_make, "gym_simplegrid:SimpleGrid-4x4-v0"),
    ),
    Package(
        "gym-trading-env",
        "gym_trading_env",
        "gym_trading_env:MultiDatasetTradingEnv",
        10_000,
        partial(gymnasium_make, "gym_trading_env:MultiDatasetTradingEnv", dataset_dir=PRICES, verbose=0),
        ("--env-arg", f"dataset_dir={PRICES}", "--env-arg", "verbose=0"),
        prepare=write_prices,
    ),
    Package(
        "gymnasium-2048",
        "gymnasium_2048",
        "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0",
        20_000,
        partial(gymnasium_make, "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0"),
    ),
    Package(
        "gymnasium-robotics",
        "gymnasium_robotics",
        "gymnasium_robotics:PointMaze_UMazeDense-v3",
        30_000,
        partial(gymnasium_make, "gymnasium_robotics:PointMaze_UMazeDense-v3"),
    ),
    Package(
        "highway-env",
        "highway_env",
        "highway_env:highway-fast-v0",
        6_000,
        partial(gymnasium_make, "highway_env:highway-fast-v0", config=ROAD),
        ("--env-arg", "config={vehicles_count: 3, duration: 20, simulation_frequency: 5}"),
    ),
    Package(
        "magent2",
        "magent2",
        "pettingzoo/magent2.environments.battle_v4",
        4_000,
        battle,
        ("--env-arg", "map_size=12", "--env-arg", "max_cycles=50"),
        learns=False,
    ),
    Package(
        "minigrid",
        "minigrid",
        "MiniGrid-Empty-5x5-v0",
        20_000,
        partial(gymnasium_make, "minigrid:MiniGrid-Empty-5x5-v0"),
    ),
    Package(
        "mo-gymnasium",
        "mo_gymnasium",
        "mo_gymnasium:deep-sea-treasure-v0",
        20_000,
        weighed,
        ("--set", "env.wrappers=[mo_gymnasium.wrappers:LinearReward]"),
    ),
    Package(
        "panda-gym",
        "panda_gym",
        "panda_gym:PandaReachDense-v3",
        16_000,
        partial(gymnasium_make, "panda_gym:PandaReachDense-v3"),
    ),
    Package("pettingzoo", "mpe2", "pettingzoo/mpe2.simple_v3", 30_000, simple),
    Package(
        "popgym",
        "popgym",
        "popgym:popgym-HigherLowerEasy-v0",
        30_000,
        partial(gymnasium_make, "popgym:popgym-HigherLowerEasy-v0"),
    ),
]
