"""What bench/defaults.py found, in words and tables: on the console, and as docs/defaults.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proximo.experiment.statistics import Improvement, improvement

Rows = list[dict[str, Any]]
Scores = dict[str, dict[str, list[float]]]
"""The scores of each candidate by environment, in the order of seeds."""
PAGE = Path(__file__).parent.parent / "docs" / "defaults.md"
SB3, OLD = "Stable-Baselines3", "documents"


def by_candidate(rows: Rows, envs: Iterable[str]) -> Scores:
    found: Scores = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        if row["env"] in envs:
            found.setdefault(row["candidate"], {}).setdefault(row["env"], []).append(row["score"])
    return found


def against(first: dict[str, list[float]], second: dict[str, list[float]]) -> Improvement | None:
    """The probability that the first is better, over the environments that both were trained on."""
    both = [env for env in first if env in second]
    if not both:
        return None
    return improvement({env: first[env] for env in both}, {env: second[env] for env in both})


def of_half(environments: dict[str, dict[str, Any]], half: str) -> list[str]:
    return [env for env, about in environments.items() if about["half"] == half]


def table(environments: dict[str, dict[str, Any]], rows: Rows, half: str) -> None:
    """Every candidate's scores on one half, and how it compares with the documents' values, on the console."""
    scores = by_candidate(rows, of_half(environments, half))
    for env in of_half(environments, half):
        print(env)
        for name, found in scores.items():
            if env in found:
                taken = [row["cpu_seconds"] for row in rows if (row["candidate"], row["env"]) == (name, env)]
                shown = ", ".join(f"{score:.4g}" for score in found[env])
                print(f"    {name:28} {shown:50} {statistics.median(taken):.1f} processor seconds")
    for name, found in scores.items():
        if name != OLD and (said := against(found, scores[OLD])) is not None:
            print(f"{name} over {OLD}: {in_words(said)}; {', '.join(f'{p:.2f}' for p in said.per_env.values())}")


def in_words(said: Improvement) -> str:
    low, high, note = said.interval
    return f"{said.probability:.2f} ({note or f'{low:.2f} to {high:.2f}, p = {said.p_value:.2g}'})"


def write(environments: dict[str, dict[str, Any]], rows: Rows, chosen: str, candidates: dict[str, Any]) -> None:
    """Write docs/defaults.md; its words are in defaults_report.md, with a place for each table."""
    template = (Path(__file__).parent / "defaults_report.md").read_text()
    choose, judge = of_half(environments, "choose"), of_half(environments, "judge")
    parts = {
        "split": split_table(environments),
        "candidates": candidates_table(candidates),
        "choosing": choosing_table(rows, choose),
        "judging": scores_table(rows, judge, [chosen, OLD, SB3]),
        "verdict": verdict_table(rows, judge, chosen),
        "seconds": seconds_table(rows, judge, chosen),
    }
    PAGE.write_text(template.format(chosen=chosen, **parts))


def lines(*rows: Iterable[str]) -> str:
    """A table in Markdown; the first row is its head."""
    head, *body = [list(row) for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def split_table(environments: dict[str, dict[str, Any]]) -> str:
    cells = (
        (f"`{env}`", {"choose": "choosing", "judge": "judging"}[about["half"]], about["action"], about["about"])
        for env, about in environments.items()
    )
    return lines(("environment", "half", "actions", ""), *cells)


def candidates_table(candidates: dict[str, Any]) -> str:
    base = candidates[OLD]

    def changes(values: dict[str, Any]) -> str:
        own = {key: value for key, value in values.items() if base.get(key) != value}
        return ", ".join(f"`{key}={value}`" for key, value in own.items()) or "-"

    return lines(("candidate", "over the documents' values"), *((name, changes(v)) for name, v in candidates.items()))


def number(score: float) -> str:
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:.2f}"


def choosing_table(rows: Rows, envs: list[str]) -> str:
    scores = by_candidate(rows, envs)
    head = ("candidate", *(f"`{env.rpartition(':')[2]}`" for env in envs), "over the documents'")
    body = []
    for name, found in scores.items():
        cells = ["; ".join(map(number, found.get(env, ()))) or "-" for env in envs]
        said = None if name == OLD else against(found, scores[OLD])
        body.append((name, *cells, "-" if said is None else in_words(said)))
    return lines(head, *body)


def scores_table(rows: Rows, envs: list[str], names: list[str]) -> str:
    scores = by_candidate(rows, envs)
    cells = (
        (f"`{env}`", *("; ".join(map(number, scores.get(name, {}).get(env, ()))) or "-" for name in names))
        for env in envs
    )
    return lines(("environment", *names), *cells)


def verdict_table(rows: Rows, envs: list[str], chosen: str) -> str:
    scores = by_candidate(rows, envs)
    ours, others = scores.get(chosen, {}), [scores.get(SB3, {}), scores.get(OLD, {})]
    cells = []
    for env in envs:
        said = [against({env: ours[env]}, other) if env in ours else None for other in others]
        cells.append((f"`{env}`", *("-" if one is None else in_words(one) for one in said)))
    overall = [against(ours, other) for other in others]
    cells.append(
        ("**all that both were trained on**", *("-" if one is None else f"**{in_words(one)}**" for one in overall))
    )
    return lines(("probability that the chosen values are better", f"than {SB3}'s", "than the documents'"), *cells)


def seconds_table(rows: Rows, envs: list[str], chosen: str) -> str:
    """What training takes on one core: medians by the clock and of processor seconds, and the ratio of the latter."""
    names, cells = (chosen, OLD, SB3), []
    for env in envs:
        found = [[row for row in rows if (row["candidate"], row["env"]) == (name, env)] for name in names]
        if all(found):
            clock, spent = (
                [statistics.median(row[key] for row in part) for part in found] for key in ("seconds", "cpu_seconds")
            )
            shown = (f"{c:.0f} ({s:.0f})" for c, s in zip(clock, spent, strict=True))
            cells.append((f"`{env}`", *shown, f"{clock[0] / clock[-1]:.2f} ({spent[0] / spent[-1]:.2f})"))
    return lines(("seconds (of the processor)", *names, f"{chosen} / {SB3}"), *cells) if cells else "Not measured yet."
