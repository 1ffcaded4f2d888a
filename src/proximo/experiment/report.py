"""The report: one page that holds everything it shows, and needs neither a network nor scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from proximo.display.console import duration
from proximo.experiment import statistics as st
from proximo.plots.charts import names
from proximo.plots.drawing import number
from proximo.plots.panels import interval_text, readable
from proximo.run_dir.files import to_json

Record = dict[str, Any]
Cell = str | tuple[str, str]
"""Text that is not yet escaped; or a class and HTML."""
LONG = 25
"""Tables with more rows are folded."""

STYLE = """
:root { color-scheme: light dark; --ink: #333333; --soft: #5b6068; --grid: #e6e6e6; --edge: #bbbbbb; --paper: #ffffff;
  --panel: #f6f7f9; --link: #005a9c; --warn: #fff4e0; --good: #e6f2fa;
  --blue: #0072b2; --sky: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a9afb8; --grid: #34383f; --edge: #5a6069;
  --paper: #1b1d21; --panel: #25282d; --link: #7cc0f5; --warn: #3d3220;
  --good: #1d3140; --blue: #3f9fdd; --sky: #a8dcff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 .2rem; font-size: 1.7rem; line-height: 1.2; } h2 { margin: 2.6rem 0 .4rem; font-size: 1.25rem; }
h3 { margin: 1.4rem 0 .3rem; font-size: 1rem; } p { margin: .4rem 0 .8rem; } a { color: var(--link); }
.soft, caption { color: var(--soft); } nav a { display: inline-block; margin-right: 1rem; }
.box { margin: 1rem 0; padding: .7rem 1rem; border-radius: .4rem; background: var(--good); }
.box.warn { background: var(--warn); } .box ul { margin: .2rem 0; padding-left: 1.2rem; }
figure { margin: .8rem 0 1.2rem; } figure svg { display: block; width: 100%; max-width: 50rem; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; margin: .4rem 0 1rem; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .28rem .7rem .28rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; border-bottom-color: var(--edge); }
th { overflow-wrap: normal; } td { min-width: 5rem; } td.n { min-width: 0; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; color: var(--link); margin: .5rem 0; } .bad { font-weight: 600; }
code { font-size: .85em; background: var(--panel); padding: .05rem .3rem; border-radius: .2rem; }
@media print { body { max-width: none; } }
"""


def page(summary: Record, pictures: Mapping[str, str]) -> str:
    """The whole report; `pictures` are SVG elements by name."""
    title = escape(summary["title"])
    sections = [
        ("scores", "Final scores", _scores(summary, pictures)),
        ("own", "Own metrics", _own_metrics(summary)),
        ("curves", "Learning curves", _curves(summary, pictures)),
        ("pairs", "Probability of improvement", _pairs(summary, pictures)),
        ("profile", "Performance profile", _profile(summary, pictures)),
        ("time", "Time", _time(summary, pictures)),
        ("trials", "What the trials change", _overrides(summary)),
        ("runs", "Runs", _runs(summary)),
        ("reading", "How to read this", _reading(summary)),
    ]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{heading}</h2>{text}</section>\n' for name, heading, text in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p class=soft>{escape(_size(summary))}</p>\n"
        f"{_findings(summary)}{_notes(summary)}<nav>{links}</nav>\n{body}</body>\n</html>\n"
    )


def _size(summary: Record) -> str:
    runs, envs = summary["runs"], summary["environments"]
    counted = sum(run["counts"] for run in runs)
    where = envs[0] if len(envs) == 1 else _count(len(envs), "environment")
    seeds = _count(len({run["seed"] for run in runs}), "seed")
    return (
        f"{_count(len(summary['trials']), 'trial')}, {where}, {seeds}: {counted} of {_count(len(runs), 'run')} count."
    )


def _findings(summary: Record) -> str:
    """What can be said, in words, before anything else."""
    shown = [pair for pair in summary["pairs"] if pair["better"] is not None]
    if not summary["pairs"]:
        return ""
    compared = [pair for pair in summary["pairs"] if pair["probability"] is not None]
    if not shown:
        few = all(pair["note"] for pair in compared)
        apart = any(pair["low"] is not None and not pair["low"] <= 0.5 <= pair["high"] for pair in compared)
        chance = " Some intervals exclude 0.5, but so few runs lie so far apart by chance too often (p > 0.05)."
        why = " There are too few runs to show one." if few else chance if apart else ""
        pairs = "the two trials" if len(compared) == 1 else f"any two of the {len(summary['trials'])} trials"
        return f'<div class="box">No difference is shown between {pairs}.{why}</div>\n'
    items = [f"<li>{escape(pair['verdict'])} ({escape(_probability(pair))})</li>" for pair in shown]
    rest = len(compared) - len(shown)
    if rest:
        items.append(
            f"<li>No difference is shown in the other {'pair' if rest == 1 else f'{rest} pairs'} of trials.</li>"
        )
    listed = f"<ul>{''.join(items)}</ul>"
    if len(items) > 8:
        head = _table(
            ["trial", "#better than", "#worse than"], _standing(summary), "Of the other trials, each is shown to be"
        )
        return f'<div class="box">{head}{_folded(f"All {len(shown)} differences", listed)}</div>\n'
    return f'<div class="box">{listed}</div>\n'


def _standing(summary: Record) -> list[list[Cell]]:
    better, worse = Counter[str](), Counter[str]()
    for pair in summary["pairs"]:
        if pair["better"] is not None:
            better[pair["better"]] += 1
            worse[pair["first"] if pair["better"] == pair["second"] else pair["second"]] += 1
    names = sorted((trial["name"] for trial in summary["trials"]), key=lambda name: worse[name] - better[name])
    return [[name, _n(better[name]), _n(worse[name])] for name in names]


def _notes(summary: Record) -> str:
    notes = [f"<li>{escape(note)}</li>" for note in summary["notes"]]
    lost = [run for run in summary["runs"] if not run["counts"]]
    rows = [
        [run["trial"], run["env"], _n(run["seed"]), ("bad", _link(run, run["state"])), _n(f"{run['steps']:,}")]
        for run in lost
    ]
    table = _table(["trial", "environment", "#seed", "state", "#steps"], rows, "Runs that do not count")
    return f'<div class="box warn"><ul>{"".join(notes)}</ul>{table if lost else ""}</div>\n' if notes else ""


def _scores(summary: Record, pictures: Mapping[str, str]) -> str:
    parts = []
    if "final_scores_overall" in pictures:
        parts.append(_figure(pictures, "final_scores_overall"))
    parts += [_figure(pictures, f"final_scores{name}") for name in names(summary["environments"]).values()]
    rows: list[Sequence[Cell]] = []
    for env in summary["environments"]:
        for trial in summary["trials"]:
            score = trial["scores"].get(env)
            first: list[Cell] = [trial["name"], env]
            if score is None:
                rows.append([*first, _n("0"), _n("no score"), *[_n("")] * 6])
                continue
            rows.append([*first, *_spread(score)])
    head = ["trial", "environment", *SPREAD_HEAD]
    return "".join(parts) + (_table(head, rows) if any(parts) else "<p>No run has a score yet.</p>")


SPREAD = ("mean", "median", "std", "min", "max")


def _own_metrics(summary: Record) -> str:
    """Metric by metric, so that trials stand below each other."""
    told = [(trial["name"], one) for trial in summary["trials"] for one in trial["own_metrics"]]
    if not told:
        return ""
    rows: list[Sequence[Cell]] = []
    for place in dict.fromkeys((one["name"], one["environment"]) for _, one in told):
        for trial, one in told:
            if (one["name"], one["environment"]) == place:
                rows.append([*place, trial, *_spread(one)])
    head = ["metric", "environment", "trial", *SPREAD_HEAD]
    words = (
        "Numbers of the environments' infos (track.info), of the episodes of final evaluations: info is the value at "
        "the end of an episode, info_mean the mean over its steps. And the last numbers that callbacks returned."
    )
    return f"<p>{words}</p>{_table(head, rows)}"


def _spread(score: Record) -> list[Cell]:
    """The numbers of one trial in one environment."""
    spread = [_n("–" if (v := score[name]) is None else readable(v, score["max"])) for name in SPREAD]
    ends = score["note"] if score["low"] is None else _range(score)
    return [_n(score["n"]), _n(readable(score["iqm"], score["max"])), _n(ends), *spread]


SPREAD_HEAD = ("#runs", "#IQM", "#95 % interval", *(f"#{name}" for name in SPREAD))


def _curves(summary: Record, pictures: Mapping[str, str]) -> str:
    figures = [
        _figure(pictures, f"{kind}{name}")
        for name in names(summary["environments"]).values()
        for kind in ("learning_curves", "evaluation_curves")
    ]
    if not any(figures):
        return ""
    words = (
        "Thick lines are the interquartile mean of a trial's runs, bands its pointwise 95 % interval, thin lines "
        "single runs (left out where there are very many). A run that ended early because it had converged keeps its "
        "last value; one that does not count ends in a cross, and is not part of the mean."
    )
    return f"<p>{words}</p>{''.join(figures)}"


def _pairs(summary: Record, pictures: Mapping[str, str]) -> str:
    if not summary["pairs"]:
        return ""
    rows = []
    for pair in summary["pairs"]:
        known = pair["probability"] is not None
        chance = (
            [_n(f"{pair['probability']:.2f}"), _n(_range(pair, 2)), _n(f"{pair['p_value']:.3f}")]
            if known
            else [_n("–")] * 3
        )
        verdict: Cell = ("bad", escape(pair["verdict"])) if pair["better"] else pair["verdict"]
        rows.append([pair["first"], pair["second"], *chance, verdict])
    head = ["first", "second", "#P(first > second)", "#95 % interval", "#p", "verdict"]
    words = (
        "The probability that a run of the first trial scores higher than one of the second (ties count half), "
        "averaged over environments; 0.5 means no difference. A difference is claimed only if the interval excludes "
        "0.5 and the permutation test agrees (p ≤ 0.05)."
    )
    many = (
        f" <strong>These are {len(rows)} comparisons, not corrected for their number: about one in twenty would show a "
        f"difference by chance where there is none.</strong>"
        if len(rows) > 1
        else ""
    )
    return f"<p>{words}{many}</p>{_figure(pictures, 'improvement')}{_table(head, rows)}"


def _profile(summary: Record, pictures: Mapping[str, str]) -> str:
    wanted = ["profile_overall", *(f"profile{name}" for name in names(summary["environments"]).values())]
    figures = "".join(_figure(pictures, name) for name in wanted)
    words = "The share of runs that reach at least a score: a curve that lies above another is better at every level. "
    return f"<p>{words}Bands are pointwise 95 % intervals.</p>{figures}" if figures else ""


def _time(summary: Record, pictures: Mapping[str, str]) -> str:
    rows = []
    for name, timing in summary["timing"]["trials"].items():
        wall, pace = timing["wall_seconds_median"], timing["steps_per_second_median"]
        one, speed = "–" if wall is None else duration(wall), "–" if pace is None else f"{pace:,.0f}"
        rows.append([name, _n(one), _n(duration(timing["wall_seconds_total"])), _n(speed)])
    head = ["trial", "#time of a run (median)", "#of all its runs", "#steps per second while training (median)"]
    words = "Runs that trained side by side share the machine: compare speeds only where nothing else ran."
    return f"<p>{words}</p>{_figure(pictures, 'speed')}{_table(head, rows)}"


def _overrides(summary: Record) -> str:
    changed = list(dict.fromkeys(name for trial in summary["trials"] for name in trial["overrides"]))
    if not changed:
        return "<p>Nothing: all runs have the same settings.</p>" if len(summary["trials"]) == 1 else ""
    rows: list[Sequence[Cell]] = []
    for trial in summary["trials"]:
        base = " (baseline)" if trial["name"] == summary["baseline"] else ""
        values = [_value(trial["overrides"][name]) if name in trial["overrides"] else ("soft", "–") for name in changed]
        rows.append([f"{trial['name']}{base}", *values])
    return _table(["trial", *changed], rows, "– : as in the experiment's common settings")


def _runs(summary: Record) -> str:
    rows = []
    for run, timing in zip(summary["runs"], summary["timing"]["runs"], strict=True):
        state: Cell = run["state"] if run["counts"] else ("bad", escape(run["state"]))
        score, wall = "–" if run["score"] is None else readable(run["score"]), timing["wall_seconds"]
        took = "–" if wall is None else duration(wall)
        row = [run["trial"], run["env"], _n(run["seed"]), state, _n(score), _n(f"{run['steps']:,}"), _n(took)]
        rows.append([*row, ("", _link(run, run["path"]))])
    return _table(["trial", "environment", "#seed", "state", "#score", "#steps", "#time", "folder"], rows)


def _reading(summary: Record) -> str:
    held = ", ".join(f"{percent} % with {n}" for n, percent in st.COVERAGE.items())
    items = [
        "A run's score is the mean return of its final evaluation or, without one, of its last training episodes. Runs "
        "that failed, were stopped or are missing have none: a trial that often fails looks better than it is, so look "
        "at the list of runs that do not count.",
        "The interquartile mean (IQM) is the mean of the middle half of the scores: less moved by one lucky run than "
        "the mean, and more precise than the median.",
        f"Intervals are percentile intervals of a stratified bootstrap ({st.RESAMPLES:,} resamples of the seeds within "
        f"each environment). They are called 95 % and hold the true IQM less often with few seeds: in simulations "
        f"{held} seeds. With fewer than {st.FEWEST} seeds none is given.",
        "Overlapping intervals do not mean that there is no difference: look at the probability of improvement.",
    ]
    if len(summary["environments"]) > 1:
        items.append(
            "Over all environments, scores are brought to one scale: 0 is the lowest and 1 the highest run here of "
            "each environment (0.5 for all where they are equal), and each environment counts the same. The scale "
            "depends on the runs of this report, so such numbers cannot be compared between reports."
        )
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _figure(pictures: Mapping[str, str], name: str) -> str:
    return f"<figure>{pictures[name]}</figure>\n" if name in pictures else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "") -> str:
    """A column whose title begins with # holds numbers; long tables are folded."""
    lines = ["".join(map(_cell, row)) for row in rows]
    titles = "".join(
        f"<th{' class=n' if title[0] == '#' else ''}>{escape(title.removeprefix('#'))}</th>" for title in head
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    table = f'<div class="scroll"><table>{above}<thead><tr>{titles}</tr></thead><tbody>\n{body}</tbody></table></div>\n'
    return _folded(f"Table with {len(lines)} rows", table) if len(lines) > LONG else table


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{text}</details>"


def _cell(cell: Cell) -> str:
    kind, text = ("", escape(cell)) if isinstance(cell, str) else cell
    return f'<td class="{kind}">{text}</td>' if kind else f"<td>{text}</td>"


def _n(value: object) -> Cell:
    return "n", escape(str(value))


def _link(run: Record, text: str) -> str:
    return f'<a href="{escape(quote(run["path"]))}/">{escape(text)}</a>'


def _value(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _range(about: Record, digits: int | None = None) -> str:
    if about["low"] is None:
        return str(about["note"])
    if digits is not None:
        return f"{about['low']:.{digits}f} to {about['high']:.{digits}f}"
    return f"{readable(about['low'], about['high'])} to {readable(about['high'], about['low'])}"


def _probability(pair: Record) -> str:
    """Seen from the better one."""
    value, low, high = pair["probability"], pair["low"], pair["high"]
    if pair["better"] == pair["second"]:
        value, low, high = 1 - value, 1 - high, 1 - low
    return f"probability of improvement {interval_text(value, low, high, '', digits=2)}"


def _count(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"
