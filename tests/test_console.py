"""What a run shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Rich

from proximo import settings
from proximo.display.console import (
    Display,
    duration,
    live_block,
    log_block,
    number,
    progress_line,
    sparkline,
    spent,
    thinned,
)
from proximo.settings import build, from_keywords

RECORD = {
    "update": 30,
    "step": 30_720,
    "episode": 240,
    "rollout/length_mean": 212.0,
    "rollout/return_mean": 212.5,
    "rollout/reward_mean": 1.0,
    "recent/return_mean": 187.25,
    "recent/length_mean": 187.0,
    "recent/success_rate": 0.25,
    "loss/objective": 0.0123,
    "loss/critic": 45.2,
    "loss/entropy": 0.51,
    "ppo/approx_kl": 0.0042,
    "ppo/clip_fraction": 0.0825,
    "ppo/clip_epsilon": 0.2,
    "time/update": 0.05,
    "time/steps_per_second": 20_000.0,
}
CONFIG = settings.build({"stop.target_reward": 475.0, "train.total_timesteps": 130_720})


def drawn(what: Any, terminal: bool = True) -> str:
    out = io.StringIO()
    Rich(file=out, force_terminal=terminal, width=120, color_system=None, highlight=False).print(what)
    return out.getvalue()


def test_sparkline() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0]) == "▁"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert len(sparkline(list(range(1000)))) == 40
    assert sparkline(list(range(1000)))[0] + sparkline(list(range(1000)))[-1] == "▁█"
    values: list[float] = []
    for value in range(100_000):
        values = thinned([*values, value])
    assert 160 <= len(values) < 320
    assert values[0] == 0


def test_the_live_block_has_it_all() -> None:
    parts = {"time/environment": 0.01, "time/policy": 0.01, "time/learning": 0.02}
    text = drawn(live_block(RECORD | parts, [10.0, 187.25], CONFIG))
    for piece in (
        "30,720 / 130,720 steps",
        "5 s left",
        "187.2 of 475",
        "▁█",
        "20,000 steps/s",
        "KL 0.0042",
        "clipped 8 %",
    ):
        assert piece in text
    assert "environment 25 %, policy 25 %, learning 50 %" in text
    assert "objective 0.0123  critic 45.2  entropy 0.51" in text
    assert "environment" not in drawn(live_block(RECORD, [], CONFIG)), "one program cannot be taken apart"


def test_numbers_that_are_not_there() -> None:
    missing = RECORD | dict.fromkeys(("recent/return_mean", "loss/objective", "ppo/approx_kl", "ppo/clip_fraction"))
    assert "return  -" in drawn(live_block(missing, [], CONFIG))
    assert "return -" in progress_line(missing, CONFIG)
    assert "approx_kl:          -" in log_block(missing, CONFIG)


def test_plain_lines_without_a_terminal() -> None:
    out = io.StringIO()
    display = Display(rich=Rich(file=out, force_terminal=False, width=200))
    display.start(CONFIG, Path("runs/x"))
    with display:
        display.show([RECORD])
        display.show([RECORD | {"step": 31_000}])  # too soon for another line
    assert out.getvalue().count("steps/s") == 1
    assert "30,720 / 130,720 steps   return 187.2   20,000 steps/s   5 s left" in out.getvalue()


def test_verbose_prints_every_update() -> None:
    out = io.StringIO()
    display = Display(verbose=True, rich=Rich(file=out, force_terminal=True, width=200))
    display.start(CONFIG, Path("runs/x"))
    with display:
        display.show([RECORD, RECORD])
    assert out.getvalue().count("TRAINER STATISTICS") == 2
    for name in ("mean_ep_len", "mean_ep_return", "mean_clipped_ratio", "approx_kl", "success_rate", "clip_range"):
        assert f"{name}:" in out.getvalue()


def test_numbers_for_people() -> None:
    assert [number(value) for value in (None, float("nan"), 0.001234, 12.34, 12345.6)] == [
        "-",
        "-",
        "0.00123",
        "12.3",
        "12,346",
    ]
    assert [duration(seconds) for seconds in (4.4, 75, 7260)] == ["4 s", "1:15 min", "2:01 h"]


@pytest.mark.parametrize(
    ("train", "result", "said"),
    [
        ({}, {}, "The budget is used up: train.total_timesteps=1000."),
        ({"max_episodes": 7}, {"episodes": 9}, "The budget is used up: 9 episodes, train.max_episodes=7."),
        (
            {"max_episodes": 7},
            {"episodes": 6},
            "The budget is used up: train.total_timesteps=1000. The run ended before train.max_episodes=7 was reached.",
        ),
        ({"max_seconds": 2.5}, {"total_steps": 999}, "The budget is used up: train.max_seconds=2.5."),
    ],
)
def test_the_budget_that_ended_a_run_is_named(train: dict[str, Any], result: dict[str, Any], said: str) -> None:
    config = build(from_keywords({"total_timesteps": 1000} | train))
    assert spent({"episodes": 3, "total_steps": 1024} | result, config) == said
