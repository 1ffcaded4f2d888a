"""Tables for people."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.markup import render

from proximo.display.tables import age, runs_lines
from proximo.run_dir.read import RunStatus, RunSummary

NAME = "CartPole-v1-seed0-20261118-115303"


def run(name: str = NAME, env: str = "CartPole-v1", state: str = "complete") -> RunSummary:
    return RunSummary(Path("runs") / name, env, RunStatus(state, 1_234_567, 487.25, None), time.time() - 200)


def lines(runs: list[RunSummary], width: int | None) -> list[str]:
    return [render(line).plain for line in runs_lines(runs, width)]


def test_where_there_is_room_a_run_has_it_all() -> None:
    title, line = lines([run()], None)
    assert line == f"{NAME}  CartPole-v1  1,234,567   487.2  complete  3 min ago"
    assert title == "run                                environment      steps  return  state     last written"
    assert line in lines([run()], 120)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnax/CartPole-v1", "an-id-of-" + "many-" * 10 + "words-v0"])
@pytest.mark.parametrize("state", ["complete", "interrupted", "stopped without an end"])
def test_a_run_stays_on_one_line_of_80_columns(env: str, state: str) -> None:
    for line in (found := lines([run(env=env, state=state), run("x", "y")], 80)):
        assert cell_len(line) <= 80
    assert found[1].startswith(f"{NAME}  ")
    assert "487.2" in found[1]


def test_environments_are_cut_before_columns_are_left_out() -> None:
    long = lines([run("short", "a-rather-long-id-of-an-environment-v0")], 70)
    assert long[1].startswith("short  a-rather-long-id-of…  ")
    assert "environment" not in lines([run(state="interrupted")], 80)[0]
    assert lines([run()], 64)[0].split() == ["run", "steps", "return", "state"]
    assert lines([run()], 20)[1].split()[0] == NAME, "a name is never cut"


def test_a_name_in_brackets_is_no_markup() -> None:
    assert lines([run("[red]x")], None)[1].startswith("[red]x  ")


def test_how_long_ago() -> None:
    assert [age(s) for s in (-1, 5, 59, 60, 3599, 3600, 90_000, 200_000)] == [
        *("0 s", "5 s", "59 s", "1 min", "59 min"),
        *("1 h", "1 d", "2 d"),
    ]
