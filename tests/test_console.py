"""What a run shows."""

from __future__ import annotations

import builtins
import io
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Rich

from proximo import settings
from proximo.display.console import (
    Console,
    Display,
    Messages,
    counted,
    duration,
    live_block,
    log_block,
    make_console,
    number,
    progress_line,
    seconds_left,
    shares,
    sparkline,
    spent,
    summary,
    thinned,
)
from proximo.display.notebook import NotebookArea
from proximo.display.printing import make_rich
from proximo.errors import UserError
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
    "time/elapsed": 2.0,
    "time/steps_per_second": 20_000.0,
}
CONFIG = settings.build({"stop.target_reward": 475.0, "train.total_timesteps": 131_072})  # 64 updates of 2,048


def drawn(what: Any, width: int = 120) -> str:
    out = io.StringIO()
    Rich(file=out, force_terminal=True, width=width, color_system=None, highlight=False).print(what)
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
        "30,720 / 131,072 steps",
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
    assert "30,720 / 131,072 steps   return 187.2   20,000 steps/s   5 s left" in out.getvalue()


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


def test_the_live_block_fits_80_columns() -> None:
    long = settings.build({"train.total_timesteps": 10**9, "train.max_episodes": 10**6})
    record = RECORD | {"step": 123_456_789, "episode": 654_321, "time/steps_per_second": 1000.0}
    record |= {"time/environment": 0.01, "time/policy": 0.01, "time/learning": 0.02}
    lines = drawn(live_block(record, [float(i) for i in range(99)], long), width=80).splitlines()
    assert len(lines) == 5
    assert "123,456,789 / 1,000,001,536 steps, 654,321 / 1,000,000 episodes  18:07 h left" in lines[0]


@pytest.mark.parametrize(
    ("train", "record", "shown", "left"),
    [
        # 1,000 steps are one update of 2,048; at 20,000 steps/s 1,024 more take 51 ms.
        ({"total_timesteps": 1000}, {"step": 1024}, "1,024 / 2,048 steps", 0.0512),
        ({"total_timesteps": 1000}, {"step": 2048}, "2,048 / 2,048 steps", 0.0),
        # After a resume with fillers a run may come further than that.
        ({"total_timesteps": 2048}, {"step": 2100}, "2,048 / 2,048 steps", 0.0),
        # 30,720 steps took 1.536 s, and 240 episodes; the other 60 take a quarter of that.
        ({"max_episodes": 300}, {}, "240 / 300 episodes", 0.384),
        ({"max_episodes": 300}, {"episode": 303}, "300 / 300 episodes", 0.0),
        ({"max_episodes": 300}, {"episode": 0}, "0 / 300 episodes", 48.5376),
        ({"max_seconds": 5.0}, {}, "30,720 / 1,001,472 steps", 3.0),
        ({"max_seconds": 1.5}, {}, "30,720 / 1,001,472 steps", 0.0),
    ],
)
def test_counters_end_where_they_say_and_time_left_knows_every_budget(
    train: dict[str, Any], record: dict[str, Any], shown: str, left: float
) -> None:
    config = build(from_keywords({"total_timesteps": 1_000_000} | train))
    assert shown in counted(RECORD | record, config)
    assert seconds_left(RECORD | record, config) == pytest.approx(left)


def test_the_bar_shows_the_budget_that_is_nearest_to_its_end() -> None:
    config = build(from_keywords({"total_timesteps": 307_200, "max_episodes": 960, "max_seconds": 1.0}))
    assert shares(RECORD, config) == [0.1, 0.25, 1.0]


def test_phases_are_said_once_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    display = Display(rich=Rich(file=out, force_terminal=False, width=200))
    display.start(CONFIG, Path("runs/x"))
    with display:
        display.phase("compiling the training program")
        display.show([RECORD])
        for played in range(3):
            display.phase("evaluating", f"{played} of 10 episodes")
    said = out.getvalue()
    assert said.count("evaluating") == said.count("compiling") == 1
    assert "of 10 episodes" not in said


def test_phases_are_seen_below_the_block() -> None:
    out = io.StringIO()
    display = Display(rich=Rich(file=out, force_terminal=True, width=80, color_system=None))
    display.start(CONFIG, Path("runs/x"))
    with display:
        display.phase("compiling the training program")
        assert drawn(display._picture()).split(maxsplit=1)[1].strip() == "compiling the training program"
        display.phase("making the first update")
        display.show([RECORD])
        assert "update" not in drawn(display._picture())
        display.phase("final evaluation", "3 of 10 episodes")
        assert drawn(display._picture()).splitlines()[-1].endswith("final evaluation: 3 of 10 episodes")
        assert "KL 0.0042" in drawn(display._picture())


def test_paths_are_printed_whole() -> None:
    out, path = io.StringIO(), Path("/somewhere/" + "very-" * 20 + "long")
    display = Display(rich=make_rich(file=out, force_terminal=True, width=80))
    display.start(CONFIG, path)
    display.finish(RESULT, path)
    assert out.getvalue().count(str(path)) == 2


RESULT = {
    "stop_reason": "interrupted",
    "unconfirmed_goals": 0,
    "total_steps": 2048,
    "updates": 1,
    "episodes": 9,
    "final_return": 20.0,
    "best_return": 21.0,
    "final_eval": None,
    "wall_seconds": 3.0,
    "steps_per_second": 1000.0,
}


def test_an_interrupted_evaluation_is_called_one() -> None:
    played: dict[str, Any] = {"episodes": 3, "episodes_cut": 0, "interrupted": True}
    played |= {"return_mean": 9.5, "return_std": 0.5, "return_min": 9.0, "return_max": 10.0}
    rows = dict(summary(RESULT | {"final_eval": played}, Path("x")))
    assert rows["evaluation"] == "9.5 ± 0.5 (9 to 10.0), 3 episodes; interrupted, so short episodes count too much"
    assert "evaluation" not in dict(summary(RESULT, Path("x")))


def test_how_much_is_shown() -> None:
    assert type(make_console(0)) is type(make_console(False)) is Console
    assert isinstance(make_console(), Messages), "nobody watches a test"
    for verbose, block in ((1, False), (2, True), (True, True)):
        console = make_console(verbose)
        assert isinstance(console, Display)
        assert console.each_update is block
    with pytest.raises(UserError, match=r"verbose must be 0 .nothing., 1 .progress. or 2 .*, not 3"):
        make_console(3)


def test_a_terminal_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(make_console(), Display)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """A stand-in for IPython in a notebook; what it was given to show, in order."""
    shown: list[dict[str, str]] = []

    class ZMQInteractiveShell:
        pass

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(bundle)

    def display(bundle: dict[str, str], raw: bool = False, display_id: bool = False) -> Handle:
        shown.append(bundle)
        return Handle()

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shown


def test_a_notebook_has_the_same_block(notebook: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proximo.display.notebook.SECONDS", 0.0)
    display = make_console()
    assert isinstance(display, Display)
    display.rich = Rich(file=io.StringIO(), force_jupyter=True)
    display._config = CONFIG
    with display:
        display.phase("compiling the training program")
        assert "compiling the training program" in notebook[-1]["text/plain"]
        display.show([RECORD])
        assert "30,720 / 131,072 steps" in notebook[-1]["text/plain"]
        assert "KL" in notebook[-1]["text/html"]
    assert notebook[-1] == {"text/plain": "", "text/html": ""}, "nothing is left behind"


def test_a_notebook_is_not_flooded(notebook: list[dict[str, str]]) -> None:
    area = NotebookArea(lambda: "x")
    area.start()
    for _ in range(100):
        area.refresh()
    area.stop()
    assert len(notebook) <= 4, "at the start, then twice a second, at the end"


def test_silence() -> None:
    with warnings.catch_warnings(), Console() as console:
        warnings.simplefilter("error")
        console.phase("x")
        console.note("x")
        console.show([RECORD])
        with pytest.raises(UserWarning, match="must not be missed"):
            console.warn("must not be missed")
