"""The protocol of a study: which seeds, who is trained again, who wins, and what is kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from proximo import settings
from proximo.errors import UserError
from proximo.experiment.outcomes import Outcome
from proximo.tuning.protocol import (
    Protocol,
    again_runs,
    best_values,
    check_choice,
    check_trials,
    finalists,
    name_in_test,
    runs_of_test,
    to_yaml,
    trial_run,
    verdict,
    winner,
)
from proximo.tuning.space import from_mapping
from proximo.tuning.study import Asked, Pruner
from proximo.yaml_file import parse

ENV = "gymnax/CartPole-v1"
SPACE = from_mapping({"ppo.gamma": {"uniform": [0.9, 0.99]}, "ppo.epochs_per_update": {"choices": [4, 10]}}, "space")
PROTOCOL = Protocol("s", settings.build({"env.id": ENV, "seed": 7}), "preset", SPACE)


def test_the_seeds_of_trials_of_finalists_and_of_the_test_are_apart() -> None:
    trials = [trial_run(PROTOCOL, number, PROTOCOL.base).config.seed for number in range(3)]
    again = [run.config.seed for run in again_runs(PROTOCOL, 1, PROTOCOL.base)]
    test = [run.config.seed for run in runs_of_test(PROTOCOL, 1, PROTOCOL.base)]
    assert trials == [10_007, 110_007, 210_007]
    assert again == [20_007, 120_007, 220_007, 320_007, 420_007]
    assert test == [7, 100_007, 200_007, 300_007, 400_007]
    assert PROTOCOL.num_runs == 40 + 3 * 5 + 2 * 5


def test_a_run_says_what_its_trial_changes() -> None:
    config = settings.build({"ppo.gamma": 0.95}, base=PROTOCOL.base)
    run = trial_run(PROTOCOL, 12, config)
    assert (run.trial, run.folder, run.overrides) == ("trial 12", "runs/trial012", {"ppo.gamma": 0.95})


def test_the_best_three_that_came_to_their_end_are_finalists() -> None:
    values = [5.0, 9.0, None, 9.0, 7.0]
    trials = [Asked(number, {}, "complete" if v else "failed", v) for number, v in enumerate(values)]
    assert finalists([*trials, Asked(5, {}, "pruned", 99.0)]) == [1, 3, 4]
    assert finalists(trials[:1]) == [0]


def test_the_interquartile_mean_of_fresh_seeds_decides() -> None:
    lucky, steady = [0.0, 0.0, 0.0, 0.0, 1000.0], [10.0, 11.0, 12.0, 13.0, 14.0]
    assert winner({4: lucky, 2: steady}) == 2
    assert winner({4: steady, 2: steady}) == 4
    assert winner({4: [], 2: [1.0]}) == 2
    assert winner({4: []}) is None


def outcomes_of(tuned: list[float], first: list[float]) -> list[Outcome]:
    return [
        Outcome(name_in_test(PROTOCOL, number), ENV, seed, Path("x"), {}, "complete", score)
        for number, scores in ((3, tuned), (0, first))
        for seed, score in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("tuned", "first", "words"),
    [
        ([10, 11, 12, 13, 14], [1, 2, 3, 4, 5], "better"),
        ([1, 2, 3, 4, 5], [10, 11, 12, 13, 14], "worse"),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], "no difference shown"),
        ([10, 11], [1, 2], "no difference shown"),
        ([], [1, 2], None),
    ],
)
def test_the_verdict_is_in_words(tuned: list[float], first: list[float], words: str | None) -> None:
    tests = outcomes_of([float(score) for score in tuned], [float(score) for score in first])
    assert verdict(tests, PROTOCOL, 3) == words
    assert verdict([], PROTOCOL, 0) == "no difference shown"


def test_what_is_kept_gives_the_settings_back_whether_or_not_there_is_a_preset() -> None:
    preset = {"ppo.gamma": 0.5, "ppo.clip_epsilon": 0.3, "train.total_timesteps": 10}
    config = settings.build({"env.id": ENV, "seed": 3, "ppo.epochs_per_update": 4, "network.hidden_sizes": (8,)})
    values = best_values(config, preset, SPACE)
    assert values["ppo.gamma"] == 0.99
    assert "seed" not in values
    text = to_yaml({"env.id": ENV} | values, "Two\nlines.")
    assert text.startswith("# Two\n# lines.\nenv:\n  id: gymnax/CartPole-v1\n")
    read = settings.from_mapping(parse(text), "best.yaml")
    for before in ({}, preset):
        assert dataclasses.replace(settings.build(before, read), seed=3) == config


def test_a_study_is_read_back_and_a_damaged_one_is_a_sentence(tmp_path: Path) -> None:
    PROTOCOL.save(tmp_path / "s")
    assert Protocol.load(tmp_path / "s") == PROTOCOL
    with pytest.raises(UserError, match="is not an empty folder"):
        PROTOCOL.save(tmp_path / "s")
    with pytest.raises(UserError, match=r"not the folder of a study: it has no study\.json"):
        Protocol.load(tmp_path)
    saved = json.loads((tmp_path / "s" / "study.json").read_text())
    damaged: list[Any] = [
        [],
        {},
        saved | {"trials": "many"},
        saved | {"sampler": "best"},
        saved | {"space": 3},
        saved | {"x": 1},
    ]
    for wrong in damaged:
        (tmp_path / "s" / "study.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError):
            Protocol.load(tmp_path / "s")


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="--pruner must be one of none, median, hyperband, not 'best'"):
        check_choice("pruner", "best", Pruner)
    with pytest.raises(UserError, match="--trials must be 1 to 10,000, not 0"):
        check_trials(0, 0)
    with pytest.raises(UserError, match="not enough seeds after 2,147,000,000 for 5 trials"):
        check_trials(5, 2_147_000_000)
