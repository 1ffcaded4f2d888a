"""How the pictures of a comparison are laid out: a colour for each trial, curves, rows, numbers, SVG."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from proximo.plots import drawing as d

Axes = Any
Figure = Any
# Without yellow, which is hardly seen on white; then again with another line.
COLOURS = (d.BLUE, d.VERMILION, d.GREEN, d.ORANGE, d.PURPLE, d.SKY, d.BLACK)
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
MANY = 5
"""Curves with bands above so many cover each other: each trial gets a panel of its own."""
COLUMNS = 3
LONGEST = 34
# What a page replaces by colours of its own, so that pictures follow its light and its dark side.
THEME = {"#333333": "ink", "#555555": "soft", "#767676": "soft", "#e6e6e6": "grid", "#bbbbbb": "edge"}
THEME |= {"#ffffff": "paper", "#0072b2": "blue", "#56b4e9": "sky"}


class Look(NamedTuple):
    """How a trial is drawn, in every picture."""

    colour: str
    dash: Any
    label: str


class Line(NamedTuple):
    """What is drawn of a trial over something: y [K] over x [K], and low and high ends [2, K]."""

    trial: str
    x: NDArray[Any]
    y: NDArray[Any]
    band: NDArray[Any] | None


def looks(trials: Sequence[str]) -> dict[str, Look]:
    return {
        trial: Look(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)], label)
        for i, (trial, label) in enumerate(zip(trials, labels(trials), strict=True))
    }


def labels(names: Sequence[str], most: int = LONGEST) -> list[str]:
    """Names that fit, with their ends, and can be told apart."""
    short = [cut(name, most) for name in names]
    counts = Counter(short)
    return [f"{i} {name}" if counts[name] > 1 else name for i, name in enumerate(short, 1)]


def cut(text: str, most: int = LONGEST) -> str:
    """At most so many characters: of what is longer, the beginning and the end."""
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def curves(
    title: str, where: str, xlabel: str, what: str, lines: Sequence[Line], style: dict[str, Look]
) -> tuple[Figure, dict[str, Axes]]:
    """Lines with their bands, and the panel of each trial: the same one, or with many trials one for each, in which
    the others stand in the background."""
    if len(lines) > MANY:
        return _multiples(title, where, xlabel, what, lines, style)
    figure, (axes,) = d.canvas(title, where, [d.TALL * 1.1], xlabel)
    for line in lines:
        _curve(axes, line, style[line.trial])
    d.heading(axes, what)
    if len(lines) > 1:
        longest = max(len(style[line.trial].label) for line in lines)
        columns = max(1, min(len(lines), int(d.WIDTH / (0.7 + 0.085 * longest))))
        how = {"frameon": False, "fontsize": 9, "labelcolor": d.BLACK, "handlelength": 2.2}
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns, **how)
    return figure, {line.trial: axes for line in lines}


def _multiples(
    title: str, where: str, xlabel: str, what: str, lines: Sequence[Line], style: dict[str, Look]
) -> tuple[Figure, dict[str, Axes]]:
    heights = [1.45] * math.ceil(len(lines) / COLUMNS)
    figure, grid = d.canvas(title, where, heights, xlabel, f"{what}; the other trials in grey", COLUMNS)
    for axes in grid[len(lines) :]:
        axes.set_axis_off()
    for axes in grid[len(lines) - COLUMNS : len(lines)]:  # those with nothing below them
        axes.tick_params(labelbottom=True)
    for axes, line in zip(grid, lines, strict=False):
        axes.locator_params(axis="x", nbins=3)
        axes.tick_params(labelsize=8)
        for other in lines:
            axes.plot(other.x[::2], other.y[::2], color="#bbbbbb", linewidth=0.8, alpha=0.7)
        _curve(axes, line, style[line.trial]._replace(dash="-"))
        axes.set_title(d.escaped(style[line.trial].label), loc="left", size=8, color=d.BLACK, pad=4)
    return figure, {line.trial: axes for line, axes in zip(lines, grid, strict=False)}


def _curve(axes: Axes, line: Line, look: Look) -> None:
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=look.colour, alpha=0.18, linewidth=0)
    mark = "o" if len(line.x) == 1 else None
    label = d.escaped(look.label)
    axes.plot(line.x, line.y, color=look.colour, linestyle=look.dash, linewidth=2, marker=mark, label=label, zorder=3)


def rows(title: str, where: str, xlabel: str, names: Sequence[str], what: str) -> tuple[Figure, Axes]:
    """A panel with a named row for each of `names`, the first at the top."""
    figure, (axes,) = d.canvas(title, where, [0.36 * len(names) + 0.25], xlabel, what)
    axes.set_yticks(range(len(names)), [d.escaped(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelcolor=d.BLACK)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5, integer=False)
    axes.margins(x=0.04)
    return figure, axes


def interval(axes: Axes, row: int, value: float, low: float | None, high: float | None, colour: str) -> None:
    if low is not None:
        axes.plot([low, high], [row, row], color=colour, linewidth=3.5, alpha=0.75, solid_capstyle="butt", zorder=2.5)
    axes.plot([value], [row], "D", color=colour, markersize=8, markeredgecolor="white", markeredgewidth=1, zorder=3)


def beside(axes: Axes, row: int, text: str) -> None:
    """Say something at the right of a row."""
    place = {"xycoords": ("axes fraction", "data"), "xytext": (10, 0), "textcoords": "offset points"}
    axes.annotate(d.escaped(text), (1, row), **place, size=9, va="center", color=d.BLACK, annotation_clip=False)


def interval_text(value: float, low: float | None, high: float | None, note: str, digits: int | None = None) -> str:
    """`12.3 [11.0, 13.5]`, or why there is no interval."""

    def shown(number: float) -> str:
        return f"{number:.{digits}f}" if digits is not None else readable(number, low, high)

    if low is None or high is None:
        return f"{shown(value)} ({note})"
    return f"{shown(value)} [{shown(low)}, {shown(high)}]"


def readable(value: float, *near: float | None) -> str:
    """With as many digits as give the largest of the numbers that stand together four."""
    largest = max(abs(number) for number in (value, *near) if number is not None)
    places = 3 - math.floor(math.log10(largest)) if largest > 0 else 0
    return f"{value:,.{max(0, min(places, 6))}f}".replace("-", "\N{MINUS SIGN}")


def svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page: text stays text, colours follow the page, ids are its own."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r' id="(?=[^"])', f' id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    for colour, variable in THEME.items():
        text = text.replace(f": {colour}", f": var(--{variable})")
    return text
