"""What a study adds to the report of a comparison: the search, what mattered in it, and what its result is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from proximo.experiment import statistics as st
from proximo.experiment.compare import Addition
from proximo.experiment.report import Cell, Section, html_figure, html_table
from proximo.plots.panels import readable
from proximo.tuning.charts import draw, shown
from proximo.tuning.protocol import SEEDS, Protocol, name_in_test
from proximo.tuning.study import EARLIEST, Asked

Record = dict[str, Any]


def search_record(
    protocol: Protocol,
    trials: Sequence[Asked],
    again: Mapping[int, Sequence[float]],
    winner: int | None,
    importances: Mapping[str, float],
) -> Record:
    """What `summary.json` says of a search."""
    return {
        "env": protocol.base.env.id,
        "sampler": protocol.sampler,
        "pruner": protocol.pruner,
        "planned": protocol.trials,
        "origin": protocol.origin,
        "trials": [
            {
                "number": trial.number,
                "state": trial.state,
                "score": trial.value if trial.state == "complete" else None,
                "params": trial.params,
                "reported": [list(pair) for pair in trial.reported],
                "why": trial.why,
            }
            for trial in trials
        ],
        "finalists": [
            {"number": number, "scores": list(scores), "iqm": st.strata_iqm({"": scores}) if scores else None}
            for number, scores in again.items()
        ],
        "winner": winner,
        "importances": dict(importances),
        "verdict": None,
    }


def addition(protocol: Protocol, trials: Sequence[Asked], search: Record) -> Addition:
    """The search as a part of the report."""
    env, best = protocol.base.env.id, search["winner"]
    figures = draw(env, protocol.space, trials, search["importances"], best)

    def sections(pictures: Mapping[str, str]) -> list[Section]:
        return [
            Section("search", "The search", _search(protocol, search, pictures)),
            Section("importance", "What matters", _importance(pictures)),
            Section("slices", "Slices and parallel coordinates", _slices(pictures)),
            Section("finalists", "Finalists", _finalists(protocol, search)),
            Section("failed", "Trials that failed", _failed(search)),
            Section("tried", "All trials", _tried(protocol, search)),
        ]

    return Addition({"search": search}, figures, sections)


def sentence(protocol: Protocol, search: Record) -> str:
    """The result in words."""
    first = name_in_test(protocol, 0)
    if search["winner"] is None:
        return f"No trial has a score yet: {len(search['trials'])} of {protocol.trials} were begun."
    if search["winner"] == 0:
        return f"No trial was found to be better than {first}: {st.NO_DIFFERENCE}."
    found = name_in_test(protocol, search["winner"])
    if search["verdict"] is None:
        return f"{found} is the best so far; it was not yet compared with {first}."
    where = f"on {SEEDS} seeds by which nothing was chosen"
    if search["verdict"] == st.NO_DIFFERENCE:
        return f"{found} against {first} {where}: {st.NO_DIFFERENCE}."
    return f"{found} is {search['verdict']} than {first}, {where}."


def _search(protocol: Protocol, search: Record, pictures: Mapping[str, str]) -> str:
    states = [trial["state"] for trial in search["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    pruning = "" if protocol.pruner == "none" else f", pruned by {protocol.pruner} from {EARLIEST} % of the budget on"
    words = (
        f"{len(states)} of {protocol.trials} trials, chosen by {protocol.sampler}{pruning}: {counts}. Each was trained "
        f"once, with a seed of its own. Trial 0 has the {protocol.origin} that the search began with."
    )
    said = escape(sentence(protocol, search))
    return f'<div class="box">{said}</div><p>{escape(words)}</p>{html_figure(pictures, "search_history")}'


def _importance(pictures: Mapping[str, str]) -> str:
    words = (
        "How much each setting tells the best tenth of the trials from all of them. One seed for each trial and few "
        "trials make this a hint: settings with small shares cannot be told apart."
    )
    drawn = html_figure(pictures, "search_importance")
    return f"<p>{words}</p>{drawn}" if drawn else ""


def _slices(pictures: Mapping[str, str]) -> str:
    return html_figure(pictures, "search_slices") + html_figure(pictures, "search_parallel")


def _finalists(protocol: Protocol, search: Record) -> str:
    if not search["finalists"]:
        return ""
    scores = {trial["number"]: trial["score"] for trial in search["trials"]}
    rows: list[list[Cell]] = [
        [
            f"trial {one['number']}" + (" (winner)" if one["number"] == search["winner"] else ""),
            _number(scores[one["number"]]),
            _number(one["iqm"]),
            ("n", escape(", ".join(readable(score) for score in one["scores"]))),
        ]
        for one in search["finalists"]
    ]
    words = (
        f"The best trials, trained again with {SEEDS} fresh seeds: the score by which a trial was chosen is too good, "
        f"because it was chosen. The highest interquartile mean (IQM) of the fresh seeds wins."
    )
    return f"<p>{words}</p>{html_table(['trial', '#score in the search', '#IQM again', '#scores again'], rows)}"


def _failed(search: Record) -> str:
    rows = [[f"trial {trial['number']}", trial["why"]] for trial in search["trials"] if trial["state"] == "failed"]
    return html_table(["trial", "why"], rows) if rows else ""


def _tried(protocol: Protocol, search: Record) -> str:
    names = [dimension.name for dimension in protocol.space]
    rows: list[list[Cell]] = [
        [
            str(trial["number"]),
            trial["state"],
            _number(trial["score"]),
            *(shown(trial["params"][name]) if name in trial["params"] else "–" for name in names),
        ]
        for trial in search["trials"]
    ]
    return html_table(["trial", "state", "#score", *names], rows, "– : as in trial 0") if rows else ""


def _number(value: float | None) -> Cell:
    return "n", "–" if value is None else readable(value)
