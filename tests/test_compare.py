"""From run directories to a comparison: what is read, how runs become trials, what the summary says."""

from __future__ import annotations

import csv
import fcntl
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proximo import PPOTrainer, settings
from proximo.errors import UserError
from proximo.experiment.compare import gather, write_comparison
from proximo.experiment.outcomes import Curve, Outcome, read_outcome

ENV = "gymnax/CartPole-v1"


def write_run(
    path: Path,
    seed: int = 0,
    score: float = 100.0,
    env: str = ENV,
    reason: str | None = "budget",
    steps: int = 1_000,
    evaluated: bool = True,
    **overrides: Any,
) -> Path:
    """A run directory, with as much in it as a comparison reads."""
    path.mkdir(parents=True)
    values = {name.replace("__", "."): value for name, value in overrides.items()}
    config = settings.build({"seed": seed, "env.id": env} | values)
    (path / "config.yaml").write_text(settings.to_yaml(config))
    rows: list[dict[str, Any]] = [
        {"update": u, "step": u * steps // 4, "recent/return_mean": score * u / 4} for u in range(1, 5)
    ]
    rows[0]["recent/return_mean"] = None
    rows[1] |= {"eval/episodes": 10, "eval/return_mean": score / 2}
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    final = {"final_eval": {"return_mean": score} if evaluated else None, "final_return": score - 1}
    result = {"stop_reason": reason, "total_steps": steps, "wall_seconds": 2.0, "steps_per_second": 500.0} | final
    if reason is not None:
        (path / "result.json").write_text(json.dumps(result))
    return path


def write_experiment(folder: Path, scores: Mapping[str, Sequence[float | None]], **options: Any) -> Path:
    """`scores` by trial: one for each seed. Trials set the clip range."""
    runs = []
    for i, (trial, values) in enumerate(scores.items()):
        for seed, score in enumerate(values):
            path = folder / "runs" / f"{i}-{seed}"
            if score is not None:
                write_run(path, seed, score, ppo__clip_epsilon=0.1 * (i + 1), **options)
            about = {"path": path.relative_to(folder).as_posix(), "trial": trial, "env": ENV, "seed": seed}
            runs.append(about | {"overrides": {"ppo.clip_epsilon": 0.1 * (i + 1)}})
    (folder / "experiment.json").write_text(json.dumps({"runs": runs}))
    return folder


def read(path: Path) -> Outcome:
    return read_outcome(path, "trial", {"ppo.gamma": 0.9}, ENV, 3)


# Outcomes


def test_a_complete_run(tmp_path: Path) -> None:
    found = read(write_run(tmp_path / "run", score=80.0))
    assert (found.state, found.score, found.steps, found.counts) == ("complete", 80.0, 1_000, True)
    assert (found.trial, found.env, found.seed, found.overrides) == ("trial", ENV, 3, {"ppo.gamma": 0.9})
    assert (found.wall_seconds, found.steps_per_second) == (2.0, 500.0)
    assert found.curve == Curve((500, 750, 1000), (40, 60, 80), (500, 1000), (40, 80))


def test_without_an_evaluation_the_recent_return_is_the_score(tmp_path: Path) -> None:
    assert read(write_run(tmp_path / "run", score=80.0, evaluated=False)).score == 79.0


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        *(("converged", "complete"), ("callback", "complete"), ("failed", "failed"), ("interrupted", "interrupted")),
        (None, "stopped without an end"),
    ],
)
def test_states(tmp_path: Path, reason: str | None, state: str) -> None:
    found = read(write_run(tmp_path / "run", reason=reason))
    assert (found.state, found.steps, found.counts) == (state, 1_000, state == "complete")
    assert len(found.curve.steps) == 3


def test_a_run_that_is_being_trained(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (read(path).state, read(path).counts, read(path).score) == ("running", False, None)


def test_what_is_missing_or_damaged_says_so(tmp_path: Path) -> None:
    assert (read(tmp_path / "never").state, read(tmp_path / "never").score) == ("missing", None)
    (tmp_path / "empty").mkdir()
    assert read(tmp_path / "empty").state == "missing"
    damages = {
        "result.json": ["", "[]", "{", '{"stop_reason": "budget"}', "\x00\xff", "[" * 100_000],
        "metrics.jsonl": ["nonsense\n", "[]\n", "3\n", '{"step": "far"}\n', '{"step": %s}\n' % ("9" * 400)],
    }
    damages["result.json"] += ['{"stop_reason": "budget", "total_steps": Infinity}']
    damages["result.json"] += ['{"stop_reason": "budget", "total_steps": 1, "final_eval": "x"}']
    for i, (file, text) in enumerate((file, text) for file, texts in damages.items() for text in texts):
        path = write_run(tmp_path / str(i))
        (path / file).write_text(text)
        assert (read(path).state, read(path).counts) == ("damaged", False), (file, text[:40])


def test_the_last_row_may_be_half_written(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", reason=None)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12')
    assert (read(path).state, read(path).steps) == ("stopped without an end", 1_000)


@pytest.mark.slow
def test_a_run_as_the_trainer_leaves_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {"total_timesteps": 2_048, "num_envs": 4, "eval_frequency": 2, "eval_episodes": 2}
    result = PPOTrainer(ENV, out=tmp_path / "run", **given).train()
    (found,) = gather([tmp_path / "run"])
    assert found == read_outcome(tmp_path / "run", found.trial, {}, ENV, 0)
    assert (found.state, found.steps, found.env, found.seed) == ("complete", result["total_steps"], ENV, 0)
    assert found.score == result["final_eval"]["return_mean"] == found.curve.eval_returns[-1]
    assert found.wall_seconds == result["wall_seconds"]
    assert len(found.curve.eval_steps) >= 2


# Gathering


def places(outcomes: Iterable[Outcome]) -> list[tuple[str, str, int]]:
    return [(run.trial, run.env, run.seed) for run in outcomes]


def test_an_experiments_runs_keep_their_trials(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "study", {"base": [1.0, 2.0], "wide": [3.0, None]})
    found = gather([folder])
    assert places(found) == [("base", ENV, 0), ("base", ENV, 1), ("wide", ENV, 0), ("wide", ENV, 1)]
    assert [run.state for run in found] == ["complete"] * 3 + ["missing"]
    assert found[2].overrides == {"ppo.clip_epsilon": 0.2}
    assert len(gather([tmp_path, folder])) == 4, "found twice, and read once"


def test_runs_are_grouped_by_what_differs(tmp_path: Path) -> None:
    for seed in range(2):
        for clip in (0.1, 0.3):
            name = f"{clip}-{seed}"
            write_run(tmp_path / "deep" / "er" / name, seed, ppo__clip_epsilon=clip, track__log_frequency=seed + 1)
    found = gather([tmp_path])
    assert sorted(places(found)) == sorted((f"clip_epsilon={c}", ENV, s) for c in (0.1, 0.3) for s in (0, 1))
    assert {run.trial: run.overrides for run in found}["clip_epsilon=0.3"] == {"ppo.clip_epsilon": 0.3}
    named = gather(sorted((tmp_path / "deep" / "er").iterdir()))
    assert sorted(places(named)) == sorted(places(found))


def test_environments_with_settings_of_their_own_are_no_trials(tmp_path: Path) -> None:
    for env, gamma in ((ENV, 0.9), ("gymnax/Acrobot-v1", 0.99)):
        for clip in (0.1, 0.3):
            path = tmp_path / f"{clip}-{env[7]}"
            write_run(path, env=env, ppo__clip_epsilon=clip, ppo__gamma=gamma, network__hidden_sizes=[8])
    assert {run.trial for run in gather([tmp_path])} == {"clip_epsilon=0.1", "clip_epsilon=0.3"}


@pytest.mark.slow
def test_folders_name_their_trials(tmp_path: Path) -> None:
    for folder, clip in (("old", 0.1), ("new", 0.3)):
        for seed in range(2):
            write_run(tmp_path / folder / str(seed), seed, ppo__clip_epsilon=clip)
    write_run(tmp_path / "new" / "more", 0, ppo__clip_epsilon=0.3, ppo__gamma=0.5)
    found = gather([tmp_path / "old", tmp_path / "new"])
    gammas = {"new gamma=0.5": 1, "new gamma=0.99": 2}
    assert {name: [run.trial for run in found].count(name) for name in {run.trial for run in found}} == {
        "old": 2
    } | gammas
    assert {run.overrides["ppo.clip_epsilon"] for run in found if run.trial == "old"} == {0.1}
    assert {run.trial for run in gather([tmp_path / "old"])} == {"old"}
    for name in ("a", "b"):
        write_run(tmp_path / name / "same" / "run")
    assert len({run.trial for run in gather([tmp_path / "a" / "same", tmp_path / "b" / "same"])}) == 2


def test_trials_of_two_experiments_stay_apart(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_experiment(tmp_path / name, {"base": [1.0], name: [2.0]})
    found = gather([tmp_path / "first", tmp_path / "second"])
    assert [run.trial for run in found] == ["first: base", "first", "second: base", "second"]


def test_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no .*nowhere; name a run"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no runs"):
        gather([tmp_path])
    write_run(tmp_path / "run")
    with pytest.raises(UserError, match="nowhere"):
        gather([tmp_path, tmp_path / "nowhere"])
    for run in ('{"trial": "a"}', '{"path": "runs/a", "trial": "a", "env": "x", "seed": 1e999}'):
        (tmp_path / "experiment.json").write_text(f'{{"runs": [{run}]}}')
        with pytest.raises(UserError, match=r"experiment\.json is damaged"):
            gather([tmp_path])
    for path in ("../a", "/runs/a", r"runs/a\ud800"):  # outside of the folder, or not a name that a file can have
        run = f'{{"path": "{path}", "trial": "a", "env": "x", "seed": 0}}'
        (tmp_path / "experiment.json").write_text(f'{{"runs": [{run}]}}')
        with pytest.raises(UserError, match="which is not one of an experiment"):
            gather([tmp_path])
    (tmp_path / "experiment.json").write_text('{"runs": []}')
    with pytest.raises(UserError, match="no runs"):
        gather([tmp_path])


# The comparison

SCORES = {"base": [10.0, 20.0, 30.0, 40.0, 50.0], "wide": [60.0, 70.0, 80.0, 90.0, 100.0]}


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proximo.plots.charts.draw", lambda *_: {})


def compare(folder: Path, **options: Any) -> Any:
    return write_comparison(gather([folder]), folder, "A study", **options)


@pytest.mark.usefixtures("no_drawing")
def test_the_summary_by_hand(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "study", SCORES)
    summary = compare(folder, baseline="base")
    assert json.loads((folder / "summary.json").read_text()) == summary
    base, wide = summary["trials"]
    assert (base["name"], base["overrides"], base["runs"], base["counted"]) == ("base", {"ppo.clip_epsilon": 0.1}, 5, 5)
    assert (base["scores"][ENV]["iqm"], wide["scores"][ENV]["iqm"]) == pytest.approx((30.0, 80.0))
    assert 10 <= base["scores"][ENV]["low"] < 30 < base["scores"][ENV]["high"] <= 50
    (pair,) = summary["pairs"]
    assert (pair["first"], pair["second"], pair["probability"]) == ("wide", "base", 1.0)
    assert (pair["verdict"], pair["better"]) == ("wide is better than base", "wide")
    assert summary["notes"] == []
    assert summary["timing"]["trials"]["wide"] == {
        "wall_seconds_total": 10.0,
        "wall_seconds_median": 2.0,
        "steps_per_second_median": 500.0,
    }


@pytest.mark.usefixtures("no_drawing")
def test_a_copy_of_a_trial_shows_no_difference(tmp_path: Path) -> None:
    summary = compare(write_experiment(tmp_path / "study", {"one": SCORES["base"], "copy": SCORES["base"]}))
    (pair,) = summary["pairs"]
    assert (pair["probability"], pair["verdict"], pair["better"]) == (0.5, "no difference shown", None)


@pytest.mark.usefixtures("no_drawing")
def test_equal_experiments_differ_in_their_timing_alone(tmp_path: Path) -> None:
    first = compare(write_experiment(tmp_path / "here", SCORES))
    folder = write_experiment(tmp_path / "far" / "away", SCORES)
    for path in folder.glob("runs/*/result.json"):
        slower = json.loads(path.read_text()) | {"wall_seconds": 7.0, "steps_per_second": 3.0}
        path.write_text(json.dumps(slower))
    second = compare(folder)
    assert first.pop("timing") != second.pop("timing")
    assert first == second
    assert str(tmp_path) not in json.dumps(first)


@pytest.mark.usefixtures("no_drawing")
def test_runs_that_do_not_count_are_named_and_left_out(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "study", {"base": [*SCORES["base"], None], "wide": SCORES["wide"]})
    shutil.rmtree(folder / "runs" / "1-0")
    write_run(folder / "runs" / "1-0", 0, -1e9, reason="failed", ppo__clip_epsilon=0.2)
    summary = compare(folder)
    assert summary["notes"] == ["2 of 11 runs do not count: 1 missing, 1 failed."]
    assert [run["counts"] for run in summary["runs"]] == [True] * 5 + [False] * 2 + [True] * 4
    assert summary["trials"][1]["scores"][ENV]["n"] == 4
    assert summary["trials"][1]["scores"][ENV]["min"] == 70.0
    head, *rows = csv.reader((folder / "summary.csv").read_text().splitlines())
    assert head[:7] == ["trial", "env", "seed", "state", "counts", "score", "steps"]
    assert head[7:] == ["wall_seconds", "steps_per_second", "path", "ppo.clip_epsilon"]
    assert len(rows) == 11
    assert rows[5] == ["base", ENV, "5", "missing", "false", "", "0", "", "", "runs/0-5", "0.1"]
    assert rows[7][3:9] == ["complete", "true", "70.0", "1000", "2.0", "500.0"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
def test_scores_of_environments_are_brought_to_one_scale(tmp_path: Path) -> None:
    """Returns of 0 to 1,000 in one and -1 to 0 in the other: 0 to 1 in both."""
    other = "gymnax/Acrobot-v1"
    for seed in range(4):
        for clip, big, small in ((0.1, 0.0, -1.0), (0.3, 1_000.0, -0.5)):
            write_run(tmp_path / f"a{clip}{seed}", seed, big, ppo__clip_epsilon=clip)
            write_run(tmp_path / f"b{clip}{seed}", seed, small if seed else -1.0, env=other, ppo__clip_epsilon=clip)
    summary = compare(tmp_path)
    assert summary["scale"] == {ENV: {"0": 0.0, "1": 1_000.0}, other: {"0": -1.0, "1": -0.5}}
    low, high = summary["trials"]
    assert (low["overall"]["iqm"], low["overall"]["low"], low["overall"]["high"]) == (0.0, 0.0, 0.0)
    assert high["overall"]["iqm"] == 1.0, "one of eight is 0, and trimmed"
    shutil.rmtree(tmp_path / "b0.10")
    for seed in (1, 2, 3):
        shutil.rmtree(tmp_path / f"b0.1{seed}")
    again = compare(tmp_path)
    assert again["trials"][0]["overall"] is None
    assert again["notes"] == [f"clip_epsilon=0.1 has no score on {other}: it has none over all environments either."]
    assert again["pairs"][0]["environments"] == [ENV]


@pytest.mark.usefixtures("no_drawing")
def test_what_can_not_be_compared(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "study", {"base": [1.0], "wide": [None]})
    (pair,) = compare(folder)["pairs"]
    assert (pair["probability"], pair["verdict"]) == (None, "nothing to compare")
    with pytest.raises(UserError, match="There is no trial bse to compare with; there are base, wide"):
        compare(folder, baseline="bse")
    with pytest.raises(UserError, match="no runs"):
        write_comparison([], folder, "nothing")


@pytest.mark.usefixtures("no_drawing")
def test_equal_seeds_are_no_independent_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, 7)
    notes = compare(tmp_path)["notes"]
    assert f"has seed 7 on {ENV} 2 times" in notes[0]
    assert "too few for an interval" in notes[1]


@pytest.mark.usefixtures("no_drawing")
def test_own_metrics_are_compared(tmp_path: Path) -> None:
    """Of final evaluations, and the last that callbacks returned; where a run has none, by the others."""
    folder = write_experiment(tmp_path / "study", {"base": [1.0, 2.0, 3.0], "wide": [4.0]})
    for place, profit in (("0-0", 10.0), ("0-1", 20.0), ("0-2", None), ("1-0", 40.0)):
        path = folder / "runs" / place
        result = json.loads((path / "result.json").read_text())
        result["final_eval"] |= {"info/profit <b>": profit}
        (path / "result.json").write_text(json.dumps(result))
    with (folder / "runs" / "1-0" / "metrics.jsonl").open("a") as file:
        file.write('{"update": 5, "step": 1000, "callback/x": 7.0}\n{"update": 6, "step": 1000, "callback/x": null}\n')
    summary = compare(folder)
    base, wide = (trial["own_metrics"] for trial in summary["trials"])
    assert [(one["name"], one["mean"], one["n"]) for one in base] == [("info/profit <b>", 15.0, 2)]
    assert [(one["name"], one["iqm"]) for one in wide] == [("info/profit <b>", 40.0), ("callback/x", 7.0)]
    head, *rows = csv.reader((folder / "summary.csv").read_text().splitlines())
    assert head[10:] == ["info/profit <b>", "callback/x", "ppo.clip_epsilon"]
    assert [row[10:12] for row in rows] == [["10.0", ""], ["20.0", ""], ["", ""], ["40.0", "7.0"]]
    page = (folder / "report.html").read_text()
    assert "<h2>Own metrics</h2>" in page
    assert "info/profit &lt;b&gt;" in page
