"""The pictures of a run: what they show, that they can always be drawn, and that they never end a run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes import Notes
from proximo import PPOTrainer, settings
from proximo.plots.drawing import logarithmic_if_wide, number, palette, smoothed
from proximo.plots.pictures import PICTURES, RunData
from proximo.plots.write import draw_pictures
from proximo.run_dir.read import read_rows
from proximo.train import finish

DISCRETE = {"buffer/action_0": 0.25, "buffer/action_1": 0.75}
CONTINUOUS = {f"buffer/action_{i}_{part}": value for i in range(3) for part, value in (("mean", i), ("std", 0.5))}
NESTED = {f"buffer/action_move_{i}": 0.1 for i in range(10)} | {"buffer/action_$arm_0_mean": 0.0}
NESTED |= {"buffer/action_$arm_0_std": 1.0}
ALL = {f"{name}.png" for name in PICTURES} - {"own_metrics.png"}  # there is none without metrics of one's own
pytestmark = pytest.mark.pictures


def row(update: int, actions: Any = None, **more: Any) -> dict[str, Any]:
    """One of `metrics.jsonl`; numbers that depend on the update alone."""
    metrics = {
        "update": update,
        "step": 100 * update,
        "rollout/return_mean": 2.0 * update,
        "rollout/length_mean": 20.0,
        "recent/return_mean": 1.0 * update,
        "recent/length_mean": 20.0,
        "loss/objective": 0.01,
        "loss/critic": 10.0**-update if update < 9 else 1e-9,
        "loss/entropy": 0.7,
        "ppo/approx_kl": 0.01,
        "ppo/last_epoch_kl": 0.02,
        "ppo/clip_fraction": 0.1,
        "ppo/explained_variance": 1 - 2 / update,
        "buffer/return_mean": 5.0,
        "buffer/return_std": 1.0,
    }
    return metrics | (DISCRETE if actions is None else actions) | more


def evaluated(mean: float) -> dict[str, Any]:
    names = {"episodes": 10, "return_mean": mean, "return_low": mean - 1, "return_high": mean + 2}
    return names | {"length_mean": 20.0, "length_low": None, "length_high": None}


def in_row(mean: float) -> dict[str, Any]:
    return {f"eval/{name}": value for name, value in evaluated(mean).items()}


def a_result(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    last = {"updates": len(rows), "total_steps": rows[-1]["step"] if rows else 0, "final_eval": evaluated(7.0)}
    return last | {"best_policy": {"step": 300, "score": 6.5, "by": "evaluation"}, "resumed": []} | more


def a_trace(actions: list[dict[str, Any]] | None = None, length: int = 30, **more: Any) -> dict[str, Any]:
    columns = [{"name": "action", "choices": [0, 1], "values": [i % 2 for i in range(length)]}]
    reward = [1.0] * length
    trace = {"length": length, "return": float(length), "end": "truncated", "reward": reward, "value": reward}
    return trace | {"actions": columns if actions is None else actions} | more


def a_run(
    rows: list[dict[str, Any]],
    trace: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    **keywords: Any,
) -> RunData:
    config = settings.build(settings.from_keywords({"id": "CartPole-v1"} | keywords))
    return RunData(rows, config, result or a_result(rows), trace)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def axes_of(picture: str, run: RunData) -> Any:
    """Of a picture that is drawn of the run."""
    figure = PICTURES[picture](run)
    assert figure is not None
    return figure.axes


def drawn(path: Path, run: RunData) -> tuple[list[str], set[str]]:
    trouble = draw_pictures(written(path, run.rows), run.config, run.result, run.trace)
    return trouble, {file.name for file in (path / "plots").glob("*.png")}


# What they show


def test_the_learning_curve() -> None:
    rows = [row(i) for i in range(1, 11)]
    rows[3] |= in_row(5.0)
    run = a_run(rows, target_reward=9.0, result=a_result(rows, resumed=[{"step": 250}]))
    (axes,) = axes_of("learning_curve", run)
    raw, recent = (line.get_xydata() for line in axes.lines[:2])
    np.testing.assert_array_equal(raw, [(100 * i, 2 * i) for i in range(1, 11)])
    np.testing.assert_array_equal(recent, [(100 * i, i) for i in range(1, 11)])
    # The evaluation after update 4 and the final one, each from 1 below to 2 above.
    (bars,) = axes.containers
    ends = [segment.tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [[[400, 4], [400, 7]], [[1000, 6], [1000, 9]]]
    others = [line.get_xydata().tolist() for line in axes.lines]
    assert [[300, 6.5]] in others, "the best policy"
    assert [[0, 9], [1, 9]] in others, "the goal"
    assert [[250, 0], [250, 1]] in others, "where it was resumed"
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_title(loc="left") == "Return of an episode"


def test_shares_of_actions_fill_the_whole() -> None:
    (axes,) = axes_of("actions", a_run([row(i) for i in range(1, 5)]))
    below, above = (area.get_paths()[0].vertices[:, 1] for area in axes.collections)
    assert (below.min(), below.max(), above.max()) == (0, 25, 100)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1"]


def test_continuous_actions_are_bands() -> None:
    (axes,) = axes_of("actions", a_run([row(i, CONTINUOUS) for i in range(1, 5)]))
    assert [set(line.get_ydata()) for line in axes.lines] == [{0}, {1}, {2}]
    assert axes.collections[2].get_paths()[0].vertices[:, 1].max() == 2.5


def test_nested_actions_have_panels() -> None:
    shares, bands = axes_of("actions", a_run([row(i, NESTED) for i in range(1, 5)]))
    assert shares.get_title(loc="left") == "Share of each move in the rollout (%)"
    assert len(shares.collections) == 10
    assert len(bands.lines) == 1


def test_the_final_episode() -> None:
    trace = a_trace(length=3, reward=[1.0, -2.0, 4.0], value=[9.0, 8.0, 7.0]) | {"return": 3.0}
    reward, returned, value, action = axes_of("final_episode", a_run([row(1)], trace))
    for axes, numbers in ((reward, [1, -2, 4]), (returned, [1, -1, 3]), (value, [9, 8, 7]), (action, [0, 1, 0])):
        np.testing.assert_array_equal(axes.lines[0].get_xydata(), list(enumerate(numbers, 1)))
    assert returned.get_title(loc="left") == "Return so far: 3 after 3 steps, truncated"


def test_limits_are_drawn_where_they_are_set() -> None:
    rows = [row(i) for i in range(1, 5)]
    above = axes_of("kl_and_clipping", a_run(rows, target_kl=0.03))[0]
    assert [0.03, 0.03] in [list(line.get_ydata()) for line in above.lines]
    assert len(axes_of("kl_and_clipping", a_run(rows))[0].lines) == 2
    losses = axes_of("losses", a_run(rows))
    assert [axes.get_yscale() for axes in losses] == ["linear", "log", "linear"]


def test_moving_averages() -> None:
    np.testing.assert_allclose(smoothed(np.array([1.0, 2.0, np.nan, 4.0, 9.0]), 3), [1.5, 1.5, 3.0, 6.5, 6.5])
    np.testing.assert_array_equal(smoothed(np.array([1.0, np.nan])), [1.0, np.nan])  # one value is no average


def test_numbers_are_for_people() -> None:
    assert [number(value) for value in (1234567.0, -0.25, 0.30000000000000004)] == ["1,234,567", "−0.25", "0.3"]
    assert len({str(colour) for colour in palette(8)}) == 8
    assert len({str(colour) for colour in palette(32)}) == 32


# That they can always be drawn


NULLS = dict.fromkeys(("recent/return_mean", "rollout/return_mean", "rollout/length_mean", "recent/length_mean"))
SKIPPED = {name: None for name in row(1) if "/" in name and not name.startswith(("recent", "rollout"))}
ROWS = {
    "no rows": [],
    "one row": [row(1)],
    "no episodes": [row(i, **NULLS) for i in range(1, 4)],
    "skipped updates": [row(1), row(2) | SKIPPED, row(3)],
    "all skipped": [row(i) | SKIPPED for i in range(1, 4)],
    "older runs": [{name: value for name, value in row(i).items() if "buffer" not in name} for i in range(1, 4)],
    "nested": [row(i, NESTED) for i in range(1, 4)],
    "many": [row(i, {f"buffer/action_{j}": 1 / 32 for j in range(32)}) for i in range(1, 4)],
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_every_kind_of_run(rows: list[dict[str, Any]]) -> None:
    columns = [{"name": f"$arm {i}", "choices": None, "values": [0.1 * i]} for i in range(3)]
    bare = a_result(rows, final_eval=None, best_policy={"step": 0, "score": None, "by": "training"})
    run = a_run(rows, a_trace(columns, length=1, value=None), bare, id="$x$" * 30)
    for draw in PICTURES.values():
        figure = draw(run)
        if figure is not None:
            figure.draw_without_rendering()


@pytest.mark.slow
def test_files(tmp_path: Path) -> None:
    run = a_run([row(i) for i in range(1, 8)], a_trace(), normalize_rewards=True)
    assert drawn(tmp_path / "run", run) == ([], ALL)
    assert json.loads((tmp_path / "run" / "plots" / "trace.json").read_text()) == run.trace
    assert (tmp_path / "run" / "plots" / "losses.png").read_bytes().startswith(b"\x89PNG")
    # The run goes on, and is interrupted before its policy is evaluated again.
    assert drawn(tmp_path / "run", run._replace(trace=None)) == ([], ALL - {"final_episode.png"})
    assert not (tmp_path / "run" / "plots" / "trace.json").exists()


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_seconds(tmp_path: Path) -> None:
    line = json.dumps(row(7) | in_row(5.0))
    tmp_path.joinpath("metrics.jsonl").write_text(
        "".join(line.replace('"step": 700', f'"step": {i}') + "\n" for i in range(100_000))
    )
    started = time.process_time()
    assert draw_pictures(tmp_path, a_run([]).config, a_result([row(1000)]), a_trace(length=3_000)) == []
    assert time.process_time() - started < 3


# That they never end a run


@pytest.mark.slow
def test_one_that_fails_is_told_and_the_others_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: RunData) -> None:
        raise ZeroDivisionError("mine")

    monkeypatch.setitem(PICTURES, "losses", broken)
    trouble, files = drawn(tmp_path / "run", a_run([row(1)], a_trace()))
    assert trouble == ["plots/losses.png could not be drawn: ZeroDivisionError: mine."]
    assert files == ALL - {"losses.png"}


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    trouble, files = drawn(tmp_path / "run", a_run([row(1)]))
    assert len(trouble) == 1
    assert "learning_curve.png could not be drawn: ModuleNotFoundError" in trouble[0]
    assert files == set()


@pytest.mark.usefixtures("unchecked")
def test_whatever_fails_is_only_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("mine")

    run = a_run([row(1)])
    monkeypatch.setattr(finish, "episode_log", broken)
    nothing: Any = None
    told = finish.write_plots(tmp_path / "nowhere", run.config, run.result, nothing, nothing)
    assert "could not be traced: RuntimeError: mine" in told[0]
    assert "no pictures: FileNotFoundError" in told[1]
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_a_training_run_leaves_all_of_them(tmp_path: Path) -> None:
    small: dict[str, Any] = dict(
        num_envs=4, rollout_length=64, minibatch_size=64, epochs_per_update=1, hidden_sizes=[16], workers=0
    )
    small |= {"total_timesteps": 1024, "eval_episodes": 2}
    console = Notes()
    one = PPOTrainer("Pendulum-v1", preset=False, out=tmp_path / "run", console=console, **small)
    one.train()
    assert {file.name for file in (tmp_path / "run" / "plots").iterdir()} == ALL | {"trace.json"}
    assert not [sentence for sentence in console.said if "drawn" in sentence or "traced" in sentence]
    last = read_rows(tmp_path / "run")[-1]
    assert last["buffer/valid_fraction"] == 1
    assert last["buffer/reward_mean"] == pytest.approx(last["rollout/reward_mean"], rel=1e-5)


def test_axes_that_cannot_be_logarithmic_stay_linear() -> None:
    for values in (np.array([]), np.array([np.nan]), np.array([0.0, 1000.0]), np.array([1.0, 99.0])):
        assert not logarithmic_if_wide(None, values)


def test_own_metrics_have_panels() -> None:
    config = settings.build({"track.info": ("profit", "never")})
    own = {"info/profit": 3.0, "info_mean/profit": 2.0, "info/never": None, "callback/x$y": 1.0}
    rows = [row(1), row(2, **own, **in_row(5.0), **{"eval/info/profit": 4.0}), row(3, **own)]
    result = a_result(rows, final_eval=evaluated(7.0) | {"info/profit": 6.0})
    run = RunData(rows, config, result, None)
    figure = PICTURES["own_metrics"](run)
    assert figure is not None
    assert len(figure.axes) == 2
    assert run.played("info/profit").tolist() == [[200, 300], [4.0, 6.0]]
    assert PICTURES["own_metrics"](RunData([row(1)], config, result, None)) is None
