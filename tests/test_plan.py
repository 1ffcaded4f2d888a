"""What an experiment consists of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proximo.errors import UserError
from proximo.experiment.plan import Plan, make_plan, make_trials, overlap, read_plan

TWO = """
envs: [gymnax/CartPole-v1, CartPole-v1]
seeds: 3
base: {train: {total_timesteps: 5_000}, ppo.gamma: 0.9}
trials:
  careful: {ppo.clip_epsilon: 0.1}
  bold: {ppo: {clip_epsilon: 0.4, gamma: 0.95}, seeds: [7, 9]}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "plan.yaml"
        file.write_text(text)
        return file

    return write


def table(plan: Plan) -> list[tuple[str, str, int]]:
    return [(run.trial, run.config.env.id, run.config.seed) for run in plan.runs]


def test_trials_of_one_environment_are_seeds_from_the_first_on_far_apart() -> None:
    plan = make_plan(["CartPole-v1"], make_trials(None, None, 5, first=10), {}, {"train.total_timesteps": 1000})
    assert table(plan) == [("default", "CartPole-v1", seed) for seed in (10, 100_010, 200_010, 300_010, 400_010)]
    assert {run.config.train.total_timesteps for run in plan.runs} == {1000}
    assert [run.folder for run in plan.runs][:2] == ["runs/CartPole-v1--seed10", "runs/CartPole-v1--seed100010"]


def test_listed_seeds_stay_as_they_are_and_so_do_those_of_experiments_that_were_begun(tmp_path: Path) -> None:
    plan = make_plan(["CartPole-v1"], make_trials(None, None, [0, 1, 2]), {}, {})
    assert [run.config.seed for run in plan.runs] == [0, 1, 2]
    plan.save(tmp_path / "out")
    again = Plan.load(tmp_path / "out")
    assert [(run.config.seed, run.folder) for run in again.runs] == [
        (seed, f"runs/CartPole-v1--seed{seed}") for seed in (0, 1, 2)
    ]


@pytest.mark.parametrize(
    ("seeds", "num_envs", "told"),
    [
        (5, 8, None),
        ([0, 1, 2], 8, "The seeds 0 and 1 have 7 of 8 environments in common"),
        ([20, 3, 13], 8, "The seeds 13 and 20 have 1 of 8 environments in common"),
        ([0, 8, 16], 8, None),
        ([0, 1, 2], 1, None),
        ([4], 8, None),
    ],
)
def test_seeds_that_share_environments_are_told(seeds: Any, num_envs: int, told: str | None) -> None:
    base = {"env.num_envs": num_envs}
    plan = make_plan(["CartPole-v1", "gymnax/CartPole-v1"], make_trials(None, None, seeds), base, {}, preset=False)
    said = overlap(plan.runs, compiled={"gymnax/CartPole-v1"})
    assert (said or "").partition(" on ")[0] == (told or "")
    assert overlap(plan.runs, compiled={"gymnax/CartPole-v1", "CartPole-v1"}) is None


def test_a_file_with_named_trials(write: Callable[[str], Path]) -> None:
    plan = read_plan(write(TWO), {})
    assert plan.name == "plan"
    envs = ("gymnax/CartPole-v1", "CartPole-v1")
    expected = [
        (trial, env, seed)
        for env in envs
        for trial, seeds in (("careful", (0, 100_000, 200_000)), ("bold", (7, 9)))
        for seed in seeds
    ]
    assert table(plan) == expected
    careful, bold = plan.runs[0], plan.runs[3]
    assert (careful.config.ppo.clip_epsilon, careful.config.ppo.gamma) == (0.1, 0.9)
    assert (bold.config.ppo.clip_epsilon, bold.config.ppo.gamma) == (0.4, 0.95)
    assert bold.overrides == {"ppo.clip_epsilon": 0.4, "ppo.gamma": 0.95}
    assert bold.config.train.total_timesteps == 5000
    assert len({run.folder for run in plan.runs}) == len(plan.runs)


def test_flags_come_last_and_presets_first(write: Callable[[str], Path]) -> None:
    plan = read_plan(write(TWO), {"train.total_timesteps": 99, "seed": 4})
    assert {run.config.train.total_timesteps for run in plan.runs} == {99}
    assert [run.config.seed for run in plan.runs][:5] == [4, 100_004, 200_004, 7, 9]
    tuned = plan.runs[0].config.ppo.epochs_per_update
    plain = read_plan(write(TWO), {}, preset=False).runs[0].config.ppo.epochs_per_update
    assert (tuned, plain) == (20, 10)
    assert read_plan(write("preset: false\n" + TWO), {}).runs[0].config.ppo.epochs_per_update == 10


def test_the_number_of_seeds_can_be_given_for_all(write: Callable[[str], Path]) -> None:
    plan = read_plan(write(TWO), {}, num_seeds=1)
    assert {run.config.seed for run in plan.runs} == {0}
    assert len(plan.runs) == 4


def test_a_grid_is_every_combination(write: Callable[[str], Path]) -> None:
    text = "envs: CartPole-v1\nseeds: 1\ngrid: {ppo.clip_epsilon: [0.1, 0.2], network: {hidden_sizes: [[8], [64, 64]]}}"
    plan = read_plan(write(text), {})
    assert [run.trial for run in plan.runs] == [
        "clip_epsilon=0.1, hidden_sizes=[8]",
        "clip_epsilon=0.1, hidden_sizes=[64, 64]",
        "clip_epsilon=0.2, hidden_sizes=[8]",
        "clip_epsilon=0.2, hidden_sizes=[64, 64]",
    ]
    assert plan.runs[1].config.network.hidden_sizes == (64, 64)


def test_named_trials_and_a_grid_multiply() -> None:
    trials = make_trials({"a": {"ppo.gamma": 0.9}, "b": None}, {"ppo.clip_epsilon": [0.1, 0.2]}, 1)
    assert [trial.name for trial in trials] == [
        "a, clip_epsilon=0.1",
        "a, clip_epsilon=0.2",
        "b, clip_epsilon=0.1",
        "b, clip_epsilon=0.2",
    ]
    assert trials[1].overrides == {"ppo.gamma": 0.9, "ppo.clip_epsilon": 0.2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold name, envs"),
        ("- a", "must hold name, envs"),
        ("env: CartPole-v1", "has the unknown key 'env'; an experiment has name, envs"),
        ("seeds: 3", "envs in .* must be an environment's id or a list of ids, not None"),
        ("envs: [a, a]", "lists an environment twice"),
        ("envs: [3]", "must be an environment's id"),
        ("envs: a\nseeds: 0", "seeds in .* must be a number of at least 1 or a list of seeds, not 0"),
        ("envs: a\nseeds: [1, 1]", "lists a seed twice"),
        ("envs: a\nseeds: many", "not 'many'"),
        ("envs: a\nseeds: [-1]", "seed must be at least 0"),
        ("envs: a\ntrials: [b]", "must be mappings"),
        ("envs: a\ntrials: {b: 3}", "The trial b in .* must be a mapping of settings, not 3"),
        ("envs: a\ntrials: {b: {ppo.gama: 1}}", "ppo.gamma"),
        ("envs: a\ntrials: {b: {seed: 1}}", "sets seed, which is what envs and seeds are for"),
        ("envs: a\ntrials: {b: {env.id: c}}", "sets env.id"),
        ("envs: a\ngrid: {ppo.gamma: 0.9}", "must be a list of values, not 0.9"),
        ("envs: a\ngrid: {ppo.gamma: []}", "must be a list of values"),
        ("envs: a\ngrid: {ppo.gamma: [0.9, 0.9]}", "lists a value twice"),
        ("envs: a\ngrid: {ppo.gamma: [2]}", "ppo.gamma must be at most 1"),
        ("envs: a\ngrid: {ppo.gamma: [0.9]}\ntrials: {b: {ppo.gamma: 0.8}}", "both in the grid and in the trial b"),
        ("envs: a\npreset: 3", "preset in .* must be true, false or a name"),
        ("envs: a\nseeds: 20_000\ngrid: {ppo.gamma: [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]}", "120,000 runs"),
        ("envs: a\nseeds: 21_476", "There are not 21476 seeds that lie 100,000 apart: at most 21,475 from 0 on"),
    ],
)
def test_mistakes_are_answered_in_words(write: Callable[[str], Path], text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_plan(write(text), {})


def test_a_flag_must_not_undo_a_trial(write: Callable[[str], Path]) -> None:
    with pytest.raises(UserError, match=r"careful sets ppo.clip_epsilon, which is also given as a flag"):
        read_plan(write(TWO), {"ppo.clip_epsilon": 0.3})


def test_a_plan_is_read_back_as_it_was(write: Callable[[str], Path], tmp_path: Path) -> None:
    plan = read_plan(write(TWO), {})
    plan.save(tmp_path / "out")
    assert Plan.load(tmp_path / "out") == plan
    with pytest.raises(UserError, match="is not an empty folder"):
        plan.save(tmp_path / "out")


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved.pop("runs"),
        lambda saved: saved["runs"][0].update(path="../../elsewhere"),
        lambda saved: saved["runs"][0].update(path="runs/../../x"),
        lambda saved: saved["runs"][0].update(settings=3),
        lambda saved: saved["runs"][0].update(overrides={"nothing": 1}),
        lambda saved: saved.update(runs=[3]),
    ],
)
def test_a_damaged_plan_is_refused_in_words(
    write: Callable[[str], Path], tmp_path: Path, damage: Callable[..., Any]
) -> None:
    read_plan(write(TWO), {}).save(tmp_path / "out")
    file = tmp_path / "out" / "experiment.json"
    saved = json.loads(file.read_text())
    damage(saved)
    file.write_text(json.dumps(saved))
    with pytest.raises(UserError):
        Plan.load(tmp_path / "out")


def test_a_folder_without_a_plan_is_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no experiment.json"):
        Plan.load(tmp_path)
