"""The report and its pictures: what they show, at every size and with any names, opened in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from proximo.experiment import statistics
from proximo.experiment.compare import write_comparison
from proximo.experiment.outcomes import Curve, Outcome
from proximo.experiment.report import page
from proximo.experiment.summarize import Comparison, summarize
from proximo.plots import charts, panels

CHROMIUM = shutil.which("chromium")
NASTY = """<b>a&b</b> "quoted" 'it' $x_1$ \\frac"""
VOID = {"meta", "br", "hr", "img", "link"}


def outcomes(
    folder: Path, trials: Sequence[str], envs: Sequence[str], seeds: Any, lost: Any = (), evaluated: bool = True
) -> list[Outcome]:
    """Runs that learn; the later a trial stands, the better."""
    rng, made = np.random.default_rng(0), []
    for i, trial in enumerate(trials):
        for env in envs:
            for seed in range(seeds):
                steps = np.linspace(500, 10_000, 30)
                returns = (100 + 20 * i + 10 * rng.normal()) * (1 - np.exp(-steps / 3_000))
                state = "failed" if (i, seed) in lost else "complete"
                played = (steps[9::10], returns[9::10]) if evaluated else ((), ())
                curve = Curve(*(tuple(map(float, part)) for part in (steps, returns, *played)))
                path, changed = folder / "runs" / f"{i} {env} #{seed}", {"ppo.clip_epsilon": 0.1 * i}
                numbers = (float(returns[-1]), 10_000, 3.0, 3_000.0 + i)
                made.append(Outcome(trial, env, seed, path, changed, state, *numbers, curve))
    return made


class Checker(HTMLParser):
    """Every element is closed in order, ids are there once, and nothing is fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len({*self.ids})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object", "b")
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "srcset")
            if name == "id":
                self.ids.append(str(value))
            if name in ("href", "xlink:href"):
                self.links.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def browse(*args: object) -> str:
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars"]
    command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", *offline, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Three trials on one environment, one run of which failed."""
    folder = tmp_path_factory.mktemp("study")
    made = outcomes(folder, ["base", "wide", NASTY], ["gymnax/CartPole-v1"], 5, lost={(1, 3)})
    summary = write_comparison(made, folder, "Clip & <width>", baseline="base")
    return folder, summary, made


@pytest.mark.slow
def test_the_page_is_whole_and_needs_nothing(study: tuple[Any, Any, Any]) -> None:
    folder, summary, _ = study
    shown = Checker((folder / "report.html").read_text())
    assert {f"plots/{file.name}" for file in (folder / "plots").iterdir()} == {
        f"plots/{name}.png"
        for name in ("learning_curves", "evaluation_curves", "final_scores", "profile", "improvement", "speed")
    }
    here = {link.removeprefix("#") for link in shown.links if link.startswith("#")}
    assert here <= {*shown.ids}
    elsewhere = [link for link in shown.links if not link.startswith("#")]
    assert elsewhere.count("runs/0%20gymnax/CartPole-v1%20%230/") == 1
    assert not any(":" in link for link in elsewhere)
    for words in (NASTY, "Clip & <width>", "1 of 15 runs do not count: 1 failed.", "ppo.clip_epsilon"):
        assert words in shown.text
    assert f"{NASTY} is better than base (probability of improvement 1.00 [1.00, 1.00])" in shown.text
    assert f"90 % with {5}" in shown.text
    assert "3 comparisons, not corrected" in shown.text
    assert summary["trials"][1]["counted"] == 4


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(study: tuple[Any, Any, Any], tmp_path: Path) -> None:
    folder, _, made = study
    moved = [Outcome(**{**vars(run), "path": tmp_path / run.path.relative_to(folder)}) for run in made]
    write_comparison(moved, tmp_path, "Clip & <width>", baseline="base")
    for name in ("report.html", "summary.json", "summary.csv", "plots/learning_curves.png"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="the page itself needs Chromium: apt-get install chromium")
def test_a_browser_shows_it(study: tuple[Any, Any, Any], tmp_path: Path) -> None:
    folder, _, _ = study
    address = (folder / "report.html").as_uri()
    seen = browse("--dump-dom", address)
    assert seen.count("<svg") == 6
    assert "&lt;b&gt;a&amp;b&lt;/b&gt;" in seen
    sides = {}
    for scheme in ("light", "dark"):
        file = tmp_path / f"{scheme}.png"
        forced = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
        browse(forced, "--window-size=1000,2400", f"--screenshot={file}", address)
        from matplotlib.image import imread

        sides[scheme] = imread(file)[..., :3]
    light, dark = sides["light"], sides["dark"]
    assert light[5, 5].min() > 0.95
    assert dark[5, 5].max() < 0.2
    for picture, blue in ((light, (0x00, 0x72, 0xB2)), (dark, (0x3F, 0x9F, 0xDD))):
        found = (np.abs(picture - np.array(blue) / 255).max(axis=-1) < 0.02).sum()
        assert found > 500, "the first trial's curve, in a colour that can be seen"


def test_one_run(tmp_path: Path) -> None:
    made = outcomes(tmp_path, ["only"], ["CartPole-v1"], 1, evaluated=False)
    summary = write_comparison(made, tmp_path, "One")
    shown = Checker((tmp_path / "report.html").read_text())
    assert summary["trials"][0]["scores"]["CartPole-v1"]["note"] == "too few seeds"
    assert "too few seeds" in shown.text
    names = {file.stem for file in (tmp_path / "plots").iterdir()}
    assert names == {"learning_curves", "final_scores", "speed"}, "one run has no profile, and nothing to improve on"


def test_no_run_at_all_came_to_its_end(tmp_path: Path) -> None:
    made = [
        Outcome("a", "env", seed, tmp_path / str(seed), {}, state, None, 0, None, None, Curve())
        for seed, state in enumerate(("missing", "damaged"))
    ]
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "profile.png").write_bytes(b"of an earlier report")
    write_comparison(made, tmp_path, "Nothing")
    shown = Checker((tmp_path / "report.html").read_text())
    assert "No run has a score yet." in shown.text
    assert "2 of 2 runs do not count: 1 missing, 1 damaged." in shown.text
    assert not [*(tmp_path / "plots").iterdir()]


@pytest.mark.slow
def test_many_of_everything(tmp_path: Path) -> None:
    trials = [f"learning_rate={rate:g}, {NASTY}" for rate in np.geomspace(1e-5, 1e-1, 5)] + ["sixth"]
    envs = ["ALE/Pong $1", "<i>&"]
    made = outcomes(tmp_path, trials, envs, 6, lost={(2, 0)}, evaluated=False)
    write_comparison(made, tmp_path, "Many")
    text = (tmp_path / "report.html").read_text()
    shown = Checker(text)
    assert text.count("<svg") == 3 * 2 + 2 + 2 == len([*(tmp_path / "plots").iterdir()])
    assert "15 comparisons, not corrected" in shown.text
    assert "Table with 72 rows" in shown.text


# Pictures


@pytest.fixture(scope="module")
def found(study: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    _, summary, made = study
    return Comparison("Clip", tuple(made), "base"), summary


def axes_of(figure: Any) -> Any:
    """Of a figure that was drawn."""
    assert figure is not None
    return figure.axes


def test_curves_show_what_counts_and_how_the_rest_ended(found: tuple[Any, Any]) -> None:
    figure = charts.learning_curves(found[0], "gymnax/CartPole-v1", evaluations=False)
    (axes,) = axes_of(figure)
    thick = {line.get_label(): line for line in axes.lines if line.get_linewidth() == 2}
    assert [*thick] == ["base", "wide", panels.cut(NASTY).replace("$", r"\$")]
    runs = [points for run in found[0].runs("wide") if run.counts for points in [charts.points(run, False)]]
    last = sorted(values[-1] for _, values in runs)
    assert thick["wide"].get_ydata()[-1] == pytest.approx((last[1] + last[2]) / 2), "four count"
    assert len([line for line in axes.lines if line.get_marker() == "x"]) == 1
    assert len(axes.collections) == 3, "bands"
    assert (axes.get_xlabel(), axes.get_title(loc="left")) == (
        "environment steps",
        "Mean return of recent training episodes",
    )


def test_a_run_that_ended_early_keeps_its_last_value() -> None:
    grid, middle, band = charts.trial_curve([((10.0, 20.0), (0.0, 4.0)), ((20.0, 60.0), (0.0, 8.0))])
    assert (grid[0], grid[-1], band) == (20.0, 60.0, None)
    assert (middle[0], middle[-1]) == (2.0, 6.0)


def test_rows_show_numbers(found: tuple[Any, Any]) -> None:
    comparison, summary = found
    axes = axes_of(charts.final_scores(comparison, summary, "gymnax/CartPole-v1"))[0]
    score = summary["trials"][0]["scores"]["gymnax/CartPole-v1"]
    shown = [text.get_text() for text in axes.texts]
    assert shown[0] == f"{score['iqm']:.1f} [{score['low']:.1f}, {score['high']:.1f}]"
    diamonds = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert diamonds == [trial["scores"]["gymnax/CartPole-v1"]["iqm"] for trial in summary["trials"]]
    against = axes_of(charts.improvement(comparison, summary))[0]
    assert against.get_yticklabels()[0].get_text() == "wide"
    assert len(against.texts) == 2, "with a baseline, only what is compared with it"


def test_a_profile_falls_from_all_to_none(found: tuple[Any, Any]) -> None:
    axes = axes_of(charts.profile(found[0], "gymnax/CartPole-v1"))[0]
    for line in axes.lines:
        values = line.get_ydata()
        assert (values[0], values[-1]) == (100.0, 0.0)
        assert (np.diff(values) <= 0).all()


def test_many_trials_get_a_panel_each_and_many_pairs_a_matrix() -> None:
    made = outcomes(Path(), [f"t{i}" for i in range(7)], ["env"], 4)
    comparison = Comparison("Seven", tuple(made))
    summary = summarize(comparison, Path())
    figure = charts.learning_curves(comparison, "env", evaluations=False)
    assert [axes.get_title(loc="left") for axes in axes_of(figure)[:7]] == comparison.trials
    matrix = axes_of(charts.improvement(comparison, summary))[0]
    values = {tuple(text.get_position()): text.get_text() for text in matrix.texts}
    assert len(values) == 7 * 6
    pair = summary["pairs"][0]
    assert values[1, 0] == f"{pair['probability']:.2f}"


def test_a_comparison_with_itself_is_grey_and_in_the_middle() -> None:
    made = outcomes(Path(), ["a"], ["env"], 5)
    twice = Comparison("Same", (*made, *(Outcome(**{**vars(run), "trial": "copy"}) for run in made)))
    summary = summarize(twice, Path())
    axes = axes_of(charts.improvement(twice, summary))[0]
    (diamond,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert (diamond.get_xdata()[0], diamond.get_color()) == (0.5, "#767676")
    assert summary["pairs"][0]["verdict"] == statistics.NO_DIFFERENCE
    assert "No difference is shown between the two trials.<" in page(summary, {})


def test_few_runs_that_lie_apart_are_no_difference() -> None:
    made = outcomes(Path(), ["a", "x", "x", "x", "b"], ["env"], 3)
    summary = summarize(Comparison("Few", tuple(run for run in made if run.trial != "x")), Path())
    assert (summary["pairs"][0]["low"], summary["pairs"][0]["high"]) == (0.0, 0.0)
    assert "so few runs lie so far apart by chance too often" in page(summary, {})


def test_an_element_of_a_page(found: tuple[Any, Any]) -> None:
    text = panels.svg(charts.learning_curves(found[0], "gymnax/CartPole-v1", evaluations=False), "name")
    ElementTree.fromstring(text)
    assert text.startswith("<svg")
    assert "var(--blue)" in text
    assert "#0072b2" not in text
    assert not re.search(r'id="(?!name-)', text)
    assert "environment steps" in text, "text stays text"


def test_names_that_fit() -> None:
    assert panels.cut("short") == "short"
    assert panels.cut("learning_rate=0.0003, gamma=0.99", 20) == "learning_…gamma=0.99"
    assert panels.labels(["x" * 50, "x" * 60, "y"], 9) == ["1 xxxx…xxxx", "2 xxxx…xxxx", "y"]
    assert charts.names(["one"]) == {"one": ""}
    assert charts.names(["a/b", "c"]) == {"a/b": "_a-b", "c": "_c"}
    assert len({*charts.names(["a/b", "a-b", "A_B"]).values()}) == 3
    assert "_overall" not in charts.names(["overall", "a"]).values()


def test_numbers_that_stand_together() -> None:
    assert panels.interval_text(9.87654, 1.0, 123.456, "") == "9.9 [1.0, 123.5]"
    assert panels.interval_text(-0.012341, -0.02, -0.01, "") == "−0.01234 [−0.02000, −0.01000]"
    assert panels.interval_text(0.5, None, None, "too few seeds", digits=2) == "0.50 (too few seeds)"
    assert panels.readable(1_234_567.8) == "1,234,568"
    assert panels.readable(0.0) == "0"
