"""The record of a search: what Optuna proposes depends on it alone, however often the process that asks ends."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from proximo import settings
from proximo.errors import UserError
from proximo.tuning.space import from_mapping
from proximo.tuning.study import JOURNAL, MILESTONES, Asked, Study, make_sampler, open_storage, seed_of

pytest.importorskip("optuna")
BASE = settings.build({})
SPACE = from_mapping(
    {
        "ppo.learning_rate": {"log": [1e-5, 1e-1]},
        "ppo.epochs_per_update": {"int": [1, 20]},
        "network.hidden_sizes": {"choices": [[64, 64], [256]]},
        "network.memory": {"choices": ["none", "gru"]},
        "network.memory_size": {"choices": [8, 16], "when": {"network.memory": "gru"}},
    },
    "space",
)
POINT = {
    "ppo.learning_rate": 1e-3,
    "ppo.epochs_per_update": 10,
    "network.hidden_sizes": (64, 64),
    "network.memory": "none",
}


def opened(out: Path, url: str | None = None, **how: Any) -> Study:
    out.mkdir(exist_ok=True)
    return Study(SPACE, BASE, open_storage(out, url), "study", seed=3, **how)


def score(params: dict[str, Any]) -> float:
    return -abs(math.log(params["ppo.learning_rate"] / 1e-3))


def search(out: Path, count: int, again: bool = False, url: str | None = None, **how: Any) -> list[Asked]:
    """A study whose scores are known; `again`: by a new process after every step."""
    study = opened(out, url, **how)

    def next_process() -> None:
        nonlocal study
        if again:
            study = opened(out, url, **how)

    for number in range(count):
        asked = study.ask() if number else study.begin(POINT, False)
        next_process()
        pruned = False
        for milestone in MILESTONES if how.get("pruner") else ():
            pruned = study.report(number, milestone, score(asked.params) * milestone)
            next_process()
            assert study.is_hopeless(number) == pruned
            if pruned:
                break
        if pruned:
            study.tell(number, "pruned", study.trials[number].reported[-1][1])
        elif number == 2:
            study.tell(number, "failed", why="It went wrong.")
        else:
            study.tell(number, "complete", score(asked.params))
        next_process()
    return study.trials


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"sampler": "random"}, {"sampler": "tpe"}, {"pruner": "median"}, {"pruner": "hyperband"}]
)
def test_a_study_that_was_stopped_after_every_step_is_the_undisturbed_one(tmp_path: Path, how: Any) -> None:
    count = 13 if "sampler" in how else 9  # tpe begins after ten, median after five
    whole = search(tmp_path / "whole", count, **how)
    assert search(tmp_path / "stopped", count, again=True, **how) == whole
    assert [trial.number for trial in whole] == list(range(count))
    assert len({trial.params["ppo.learning_rate"] for trial in whole}) == count
    if "sampler" in how:
        assert (whole[2].state, whole[2].why) == ("failed", "It went wrong.")
    else:
        assert any(trial.state == "pruned" for trial in whole)
        assert all(trial.reported[0][0] == 30 for trial in whole)
    for trial in whole:
        assert ("network.memory_size" in trial.params) == (trial.params["network.memory"] == "gru")
        assert trial.params["network.hidden_sizes"] in ((64, 64), (256,))


@pytest.mark.slow
def test_a_database_is_as_good_as_the_journal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    assert search(tmp_path / "a", 4, url=url) == search(tmp_path / "b", 4)
    assert not (tmp_path / "a" / JOURNAL).exists()


def test_tpe_comes_nearer_than_it_began(tmp_path: Path) -> None:
    trials = search(tmp_path / "s", 30)
    best = [score(trial.params) for trial in trials[1:]]
    assert max(best[10:]) > max(best[:10])


def test_a_line_that_was_cut_off_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    trials = search(tmp_path / "s", 3)
    journal = tmp_path / "s" / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker')
    (tmp_path / "s" / f"{JOURNAL}.lock").touch()
    study = opened(tmp_path / "s")
    assert journal.read_bytes() == whole
    assert study.trials == trials
    asked = study.ask()
    assert opened(tmp_path / "s").trials == [*trials, asked]


@pytest.mark.parametrize("text", ["nonsense\n", '{"op_code": 4}\n', "[]\n", '{"op_code": 99, "worker_id": "x"}\n'])
def test_a_damaged_journal_is_a_sentence(tmp_path: Path, text: str) -> None:
    search(tmp_path / "s", 2)
    journal = tmp_path / "s" / JOURNAL
    journal.write_text(text + journal.read_text())
    with pytest.raises(UserError, match="cannot be used"):
        opened(tmp_path / "s")


def test_a_record_of_another_space_is_refused(tmp_path: Path) -> None:
    search(tmp_path / "s", 2)
    other = from_mapping({"ppo.gamma": {"uniform": [0.9, 0.99]}}, "space")
    with pytest.raises(UserError, match="trial 0 is not one of this space"):
        Study(other, BASE, open_storage(tmp_path / "s", None), "study")


def test_no_sampler_learns_from_settings_outside_of_the_space(tmp_path: Path) -> None:
    """Trial 0 is in the record, with its score, and nothing that is proposed depends on it."""
    proposals = []
    for value in (-1.0, 1e6):
        study = opened(tmp_path / str(value))
        study.begin({"ppo.epochs_per_update": 10}, True)
        study.tell(0, "complete", value)
        for number in range(1, 13):
            study.tell(study.ask().number, "complete", -float(number))
        proposals.append([trial.params for trial in study.trials[1:]])
        assert study.trials[0].value == value
    assert proposals[0] == proposals[1]


def test_trial_0_is_never_pruned(tmp_path: Path) -> None:
    study = opened(tmp_path / "s", pruner="hyperband")
    study.begin(POINT, False)
    for number in range(1, 8):
        study.ask()
        study.report(number, 90, 100.0)
        study.tell(number, "complete", 100.0)
    assert not study.report(0, 90, -100.0)


@pytest.mark.slow
def test_the_setting_that_decides_is_the_important_one(tmp_path: Path) -> None:
    search(tmp_path / "s", 20, sampler="random")
    shares = opened(tmp_path / "s").importances()
    assert max(shares, key=lambda name: shares[name]) == "ppo.learning_rate"
    assert sum(shares.values()) == pytest.approx(1.0)
    search(tmp_path / "few", 2)
    assert opened(tmp_path / "few").importances() == {}


def test_every_trial_has_a_sampler_of_its_own() -> None:
    assert len({seed_of(seed, number) for seed in range(20) for number in range(20)}) == 400


def test_what_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="gp needs the package torch; pip install torch"):
        make_sampler("gp", 0)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r'Tuning needs the package optuna; pip install "proximo\[tune\]"'):
        make_sampler("tpe", 0)


@pytest.mark.parametrize(
    "url", ["nothing", "redis://here", "sqlite:////nowhere/at/all.db", "mysql://me:secret@here/db"]
)
def test_a_storage_that_cannot_be_used_is_a_sentence_without_secrets(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="The storage") as refused:
        opened(tmp_path / "s", url)
    assert "secret" not in str(refused.value)
