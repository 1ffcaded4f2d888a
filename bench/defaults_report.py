"""What bench/defaults.py found, in words and tables: on the console, as docs/defaults.md, and raw as summary.json."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from defaults_plan import DOCS, ENVIRONMENTS, PLAN, PRESETS, candidates, of_half, results
from proximo.experiment.statistics import Improvement, improvement

Rows = list[dict[str, Any]]
Scores = dict[str, dict[str, list[float]]]
"""The scores of each candidate by environment, in the order of seeds."""
PAGE, SUMMARY = DOCS / "defaults.md", DOCS / "defaults" / "summary.json"
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


def table(half: str) -> None:
    """Every candidate's scores on one half, and how it compares with the documents' values, on the console."""
    rows = results()
    scores = by_candidate(rows, of_half(half))
    for env in of_half(half):
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


def write() -> None:
    """Write docs/defaults.md and docs/defaults/summary.json."""
    PAGE.write_text(page(results(), results(PRESETS)))
    SUMMARY.write_text(json.dumps(summary(results(), results(PRESETS)), indent=1) + "\n")


def page(rows: Rows, of_presets: Rows) -> str:
    """docs/defaults.md: the words of defaults_report.md, with a table in each place for one."""
    template = (Path(__file__).parent / "defaults_report.md").read_text()
    chosen, choose, judge = PLAN["chosen"], of_half("choose"), of_half("judge")
    parts = {
        "split": split_table(ENVIRONMENTS),
        "candidates": candidates_table({name: values for name, (_, values) in candidates().items()}),
        "choosing": choosing_table(rows, choose),
        "rivals": rivals_table(rows, choose, chosen),
        "judging": scores_table(rows, judge, [chosen, OLD, SB3]),
        "verdict": verdict_table(rows, judge, chosen),
        "verdict_in_words": verdict_in_words(rows, judge, chosen),
        "seconds": seconds_table(rows, judge, chosen),
        "presets": presets_table(PLAN["presets"], of_presets),
        "presets_in_words": presets_in_words(PLAN["presets"], of_presets),
    }
    return template.format(chosen=chosen, **parts)


def summary(rows: Rows, of_presets: Rows) -> dict[str, Any]:
    """The raw numbers: scores by half, candidate, environment and seed; probabilities with their intervals."""
    chosen = PLAN["chosen"]
    scores: dict[str, Any] = {}
    for row in rows:
        part = scores.setdefault(ENVIRONMENTS[row["env"]]["half"], {}).setdefault(row["candidate"], {})
        part.setdefault(row["env"], {})[str(row["seed"])] = row["score"]
    judged = by_candidate(rows, of_half("judge"))
    ours, verdicts = judged.get(chosen, {}), {}
    for other in (SB3, OLD):
        theirs = judged.get(other, {})
        per_env = {env: raw(against({env: ours[env]}, theirs)) for env in ours if env in theirs}
        verdicts[other] = {"all": raw(against(ours, theirs)), "per_env": per_env}
    presets = {env: preset_verdict(of_presets, env, about) for env, about in PLAN["presets"].items()}
    return {
        "chosen": chosen,
        "environments": ENVIRONMENTS,
        "scores": scores,
        "improvement_over": verdicts,
        "seconds": seconds(rows, of_half("judge"), chosen),
        "presets": {env: said for env, said in presets.items() if said},
    }


def raw(said: Improvement | None) -> dict[str, Any] | None:
    if said is None:
        return None
    low, high, note = said.interval
    return {"probability": said.probability, "low": low, "high": high, "note": note, "p_value": said.p_value}


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


def verdict_in_words(rows: Rows, envs: list[str], chosen: str) -> str:
    """What the judging half says, in a sentence for each rival."""
    scores, said = by_candidate(rows, envs), list[str]()
    ours = scores.get(chosen, {})
    for name, theirs in ((SB3, scores.get(SB3, {})), ("the documents' values", scores.get(OLD, {}))):
        overall = against(ours, theirs)
        if overall is None:
            said.append(f"- Over {name}: not judged yet.")
            continue
        each = {env: against({env: ours[env]}, theirs) for env in ours if env in theirs}
        worse = [f"`{env}`" for env, one in each.items() if one and (one.interval.high or 1) < 0.5]
        fewest = min(min(len(ours[env]), len(theirs[env])) for env in each)
        where = f"worse on {', '.join(worse)}" if worse else "on no environment is the interval wholly below 0.5"
        said.append(
            f"- **Over {name}: {in_words(overall)}** on {len(each)} of {len(envs)} environments, {fewest} seeds or "
            f"more; {where}."
        )
    return "\n".join(said)


def rivals_table(rows: Rows, envs: list[str], chosen: str) -> str:
    """The chosen candidate against each other one, over the environments that both were trained on."""
    scores = by_candidate(rows, envs)
    cells = []
    for name, found in scores.items():
        said = None if name == chosen else against(scores[chosen], found)
        if said is not None:
            cells.append((name, str(len(said.per_env)), in_words(said)))
    return lines(("candidate", "environments", f"probability that {chosen} is better"), *cells)


def seconds(rows: Rows, envs: list[str], chosen: str) -> dict[str, dict[str, dict[str, float]]]:
    """What training takes on one core, where all were trained: medians by the clock and of processor seconds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for env in envs:
        taken = {
            name: [row for row in rows if (row["candidate"], row["env"]) == (name, env)] for name in (chosen, OLD, SB3)
        }
        if all(taken.values()):
            found[env] = {
                name: {key: statistics.median(row[key] for row in part) for key in ("seconds", "cpu_seconds")}
                for name, part in taken.items()
            }
    return found


def seconds_table(rows: Rows, envs: list[str], chosen: str) -> str:
    """Medians by environment, and the ratios to Stable-Baselines3's; in the last row their geometric means."""
    cells, ratios = [], list[tuple[float, float]]()
    for env, taken in seconds(rows, envs, chosen).items():
        shown = (f"{part['seconds']:.0f} ({part['cpu_seconds']:.0f})" for part in taken.values())
        clock, spent = (taken[chosen][key] / taken[SB3][key] for key in ("seconds", "cpu_seconds"))
        ratios.append((clock, spent))
        cells.append((f"`{env}`", *shown, f"{clock:.2f} ({spent:.2f})"))
    if not cells:
        return "Not measured yet."
    clock, spent = (statistics.geometric_mean(column) for column in zip(*ratios, strict=True))
    cells.append(("**geometric mean**", "", "", "", f"**{clock:.2f} ({spent:.2f})**"))
    return lines(("seconds (of the processor)", chosen, OLD, SB3, f"{chosen} / {SB3}"), *cells)


def preset_verdict(rows: Rows, env: str, about: dict[str, Any]) -> dict[str, Any]:
    """How a preset compares with the chosen values on its environment: by the final evaluation, and by the steps to its
    goal, or where it has none by the return of the last training episodes. It is better if the interval of one of the
    two lies above 1/2; nothing is said while runs are missing."""
    own = sorted((row for row in rows if row["env"] == env), key=lambda row: row["seed"])
    preset, defaults = ([row for row in own if row["candidate"] == name] for name in ("preset", "defaults"))
    if min(len(preset), len(defaults)) < about["seeds"]:
        return {}

    def reached(part: Rows) -> list[float]:
        return [-row["reached_at"] if row["reached_at"] else -math.inf for row in part]

    second = reached if "goal" in about else lambda part: [row["trained_return"] for row in part]
    said = [
        improvement({env: list(of(preset))}, {env: list(of(defaults))})
        for of in (lambda part: [row["score"] for row in part], second)
    ]
    return {
        "steps": about["steps"],
        "better": any((one.interval.low or 0) > 0.5 for one in said),
        "by_score": raw(said[0]),
        ("by_steps_to_goal" if "goal" in about else "by_trained_return"): raw(said[1]),
        "runs": {
            name: [preset_run(row) for row in part] for name, part in (("preset", preset), ("defaults", defaults))
        },
    }


def preset_run(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("seed", "score", "trained_return", "reached_at") if key in row}


def presets_table(presets: dict[str, Any], rows: Rows) -> str:
    head = ("environment", "steps", "scores: preset", "defaults", "goal, or return at the end: preset", "defaults")
    cells = []
    for env, about in presets.items():
        said = preset_verdict(rows, env, about)
        steps = f"{about['steps']:,}" + (f" of {about['whole']:,}" if "whole" in about else "")
        if not said:
            cells.append((f"`{env}`", steps, "not trained", *[""] * 5))
            continue
        parts = [said["runs"][name] for name in ("preset", "defaults")]
        second = "by_steps_to_goal" if "goal" in about else "by_trained_return"
        cells.append(
            (
                f"`{env}`",
                steps,
                *("; ".join(number(run["score"]) for run in part) for part in parts),
                *("; ".join(at_the_end(run) for run in part) for part in parts),
                *(f"{said[key]['probability']:.2f} ({said[key]['p_value']:.2g})" for key in ("by_score", second)),
            )
        )
    return lines((*head, "better by score (p)", "by the other (p)"), *cells)


def presets_in_words(presets: dict[str, Any], rows: Rows) -> str:
    said = {env: preset_verdict(rows, env, about) for env, about in presets.items()}
    better = [f"`{env}`" for env, one in said.items() if one and one["better"]]
    others = [f"`{env}`" for env, one in said.items() if one and not one["better"]]
    missing = [f"`{env}`" for env, one in said.items() if not one]
    shown = f"Better than the defaults: {', '.join(better) or 'none'}. Not shown to be: {', '.join(others) or 'none'}."
    return f"{shown} Not compared yet: {', '.join(missing)}." if missing else shown


def at_the_end(run: dict[str, Any]) -> str:
    if "reached_at" not in run:
        return number(run["trained_return"])
    return f"{run['reached_at']:,}" if run["reached_at"] else "not"
