"""The defaults are those that the experiment chose, and its page and summary are what its results say."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proximo import Config, settings
from proximo.experiment.plan import read_plan
from proximo.presets import choose_preset, find_preset

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[Any, Any]]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield importlib.import_module("defaults_plan"), importlib.import_module("defaults_report")
    sys.path.remove(str(ROOT / "bench"))


def taken(config: Config, paths: Iterable[str]) -> dict[str, Any]:
    """What a run with these settings has of those that the experiment varies."""
    return {path: getattr(getattr(config, path.partition(".")[0]), path.partition(".")[2]) for path in paths}


def built(values: dict[str, Any]) -> Config:
    return settings.build(settings.from_mapping(values, "the plan"))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_defaults_are_the_candidate_that_was_chosen(bench: tuple[Any, Any], kind: str) -> None:
    plan, _ = bench
    chosen = plan.settings_of(plan.PLAN["chosen"], kind)
    config = settings.settle(settings.build(), continuous=kind == "continuous")
    assert taken(config, chosen) == taken(built(chosen), chosen)


def test_the_documents_values_are_those_that_it_was_compared_with(bench: tuple[Any, Any]) -> None:
    plan, _ = bench
    documents = plan.settings_of("documents", "discrete")
    named = settings.build(choose_preset("documents", "Own-v0"))
    assert taken(named, documents) == taken(built(documents), documents)


def test_the_experiment_for_proximo_is_the_judging_half(bench: tuple[Any, Any]) -> None:
    plan, _ = bench
    made = read_plan(ROOT / "examples" / "defaults.yaml", {})
    assert sorted({run.config.env.id for run in made.runs}) == sorted(plan.of_half("judge"))
    assert {run.config.train.total_timesteps for run in made.runs} == {102_400}
    assert {run.config.seed for run in made.runs} == {0, 100_000, 200_000, 300_000, 400_000}
    trials = {run.trial: run.config for run in made.runs}
    assert trials["defaults"].ppo == settings.build().ppo
    assert trials["documents"].ppo == settings.build(choose_preset("documents", "Own-v0")).ppo
    assert trials["documents"].normalize == settings.build(choose_preset("documents", "Own-v0")).normalize
    assert trials["documents"].env.num_envs == 8


def test_no_environment_of_it_has_a_preset(bench: tuple[Any, Any]) -> None:
    plan, _ = bench
    assert not [env for env in plan.ENVIRONMENTS if find_preset(env)]
    assert [about["half"] for about in plan.ENVIRONMENTS.values()].count("judge") == 8


def test_the_page_says_what_was_measured(bench: tuple[Any, Any]) -> None:
    plan, report = bench
    rows, of_presets = plan.results(), plan.results(plan.PRESETS)
    assert report.PAGE.read_text() == report.page(rows, of_presets), "run `python bench/defaults.py report`"
    assert json.loads(report.SUMMARY.read_text()) == json.loads(json.dumps(report.summary(rows, of_presets)))


def run(candidate: str, seed: int, score: float, reached: int | None) -> dict[str, Any]:
    ended = {"score": score, "trained_return": score, "reached_at": reached}
    return {"candidate": candidate, "env": "E", "seed": seed} | ended


def test_a_preset_is_better_by_its_score_or_by_its_goal(bench: tuple[Any, Any]) -> None:
    _, report = bench
    about = {"steps": 100, "goal": 5, "seeds": 3}
    same = [run(name, seed, 7.0, 50) for name in ("preset", "defaults") for seed in range(3)]
    assert report.preset_verdict(same, "E", about)["better"] is False
    assert report.preset_verdict(same[:-1], "E", about) == {}
    sooner = same[:3] + [run("defaults", seed, 7.0, None) for seed in range(3)]
    said = report.preset_verdict(sooner, "E", about)
    assert (said["better"], said["by_steps_to_goal"]["probability"], said["by_score"]["probability"]) == (True, 1, 0.5)
    assert (
        report.preset_verdict([run("preset", seed, 6.0, 50) for seed in range(3)] + same[3:], "E", about)["better"]
        is False
    )
