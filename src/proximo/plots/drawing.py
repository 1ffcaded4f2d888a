"""How pictures look: one style for all of them. Matplotlib is imported on use, and opens no window."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

Axes = Any
Figure = Any

# Okabe and Ito's colours, which nearly everyone can tell apart.
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, YELLOW, BLACK = COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#E69F00"),
    *("#CC79A7", "#56B4E9", "#F0E442", "#333333"),
)
GREY = "#767676"
DPI = 120
WIDTH, TALL, LOW = 8.0, 3.4, 1.5  # inches: of a picture, and the heights of its panels
EDGE, ABOVE, BETWEEN = 0.1, 0.9, 0.45  # inches: around a picture, for its title and labels, and for a panel's heading
FEW = 60
"""Points of which each gets a mark."""


def canvas(
    title: str,
    subtitle: str,
    heights: Sequence[float],
    xlabel: str,
    what: str = "",
    columns: int = 1,
    same_x: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with panels of about the given heights, one above the other, on the same horizontal axis unless not
    `same_x`; below its title it says `what` it shows, where no panel has a heading that does. Matplotlib's constrained
    layout finds the room for labels, legends, and what stands beside a panel.

    The style is set on each figure, and not in Matplotlib's settings: these belong to the user, and to all threads.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height = ABOVE + sum(heights) + BETWEEN * len(heights)
    layout = ConstrainedLayoutEngine(w_pad=EDGE, h_pad=EDGE)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white", layout=layout)
    ratios = {"height_ratios": heights}
    grid = figure.subplots(len(heights), columns, sharex=same_x, sharey=columns > 1, squeeze=False, gridspec_kw=ratios)
    left, right, top = EDGE / WIDTH, 1 - EDGE / WIDTH, 1 - EDGE / height
    lines = escaped(title) + ("\n" if what else "")
    figure.suptitle(lines, x=left, ha="left", size=13, weight="bold", color=BLACK)
    figure.text(left, top - 0.3 / height, escaped(what), size=10, va="top", color=BLACK)
    figure.text(right, top, escaped(subtitle), size=10, ha="right", va="top", color=GREY)
    panels = list(grid.flat)
    label = figure.supxlabel if columns > 1 else panels[-1].set_xlabel
    label(xlabel, size=10, color=BLACK)
    for number, axes in enumerate(panels):
        dress(axes, heights[number // columns])
    return figure, panels


def dress(axes: Axes, height: float) -> None:
    """Grid, frame and numbers of a panel that is about `height` inches high."""
    axes.set_facecolor("white")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.tick_params(colors="#555555", labelsize=9, length=3)
    axes.margins(x=0.01)
    axes.locator_params(axis="x", nbins=7, integer=True)
    axes.locator_params(axis="y", nbins=7 if height > 2.5 else 5)
    axes.xaxis.set_major_formatter(number)
    axes.yaxis.set_major_formatter(number)


def heading(axes: Axes, text: str, legend: bool = False, **options: Any) -> None:
    """Say above a panel what its vertical axis shows; the legend, if there is one, stands to the right of it."""
    axes.set_title(escaped(text), loc="left", size=10, color=BLACK, pad=6)
    if legend:
        defaults = {"ncols": 8, "borderpad": 0, "handlelength": 1.2, "handletextpad": 0.4, "columnspacing": 1.2}
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.45}
        drawn = axes.legend(frameon=False, fontsize=9, labelcolor="#555555", **(defaults | place | options))
        drawn.set_in_layout(False)  # the heading takes the room above; one that is too wide must not take the panel's


def number(value: float | np.number[Any], _: object = None) -> str:
    """For people: thousands apart, a real minus."""
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")


def escaped(text: str) -> str:
    """Dollars would begin a formula."""
    return text.replace("$", r"\$")


def smoothed(values: np.ndarray, window: int | None = None) -> np.ndarray:
    """The centred moving average over what is known; by default over about a thirtieth of the values."""
    half = max(1, len(values) // 30 if window is None else window) // 2
    known = np.isfinite(values)
    sums, counts = (np.concatenate([[0.0], np.cumsum(part)]) for part in (np.where(known, values, 0.0), known))
    start = np.maximum(np.arange(len(values)) - half, 0)
    end = np.minimum(np.arange(len(values)) + half + 1, len(values))
    count = counts[end] - counts[start]
    return np.where(count > 0, (sums[end] - sums[start]) / np.maximum(count, 1), np.nan)


def points(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, label: str | None = None) -> None:
    """Measured values, as they are: in the background."""
    size = 4.0 if len(x) <= 500 else 2.5
    axes.plot(x, y, "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.35, label=label)


def trend(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, label: str | None = None) -> None:
    """A line; gaps in what is known are bridged."""
    known = np.isfinite(y)
    mark = "o" if known.sum() == 1 else None  # one point makes no line
    axes.plot(x[known], y[known], color=colour, linewidth=1.8, marker=mark, markersize=4, label=label)


def series(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """Measured values and their moving average; the geometric one on a logarithmic axis."""
    points(axes, x, y, colour)
    logarithmic = axes.get_yscale() == "log"
    trend(axes, x, np.exp(smoothed(np.log(y))) if logarithmic else smoothed(y), colour)


def reference(axes: Axes, y: float, text: str) -> None:
    """A dashed line across, with its name at its left end."""
    axes.axhline(y, color=BLACK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8, zorder=1.5)
    place = {"xy": (0, y), "xycoords": ("axes fraction", "data"), "xytext": (4, 4), "textcoords": "offset points"}
    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
    axes.annotate(escaped(text), **place, size=9, color=BLACK, bbox=box)


def at_least_a_tenth(axes: Axes, values: np.ndarray) -> None:
    """Let the vertical axis cover at least a tenth of what values amount to: less would magnify noise."""
    known = values[np.isfinite(values)]
    span = 0.1 * np.abs(known).max(initial=0.0)
    if len(known) and np.ptp(known) < span:
        middle = (known.min() + known.max()) / 2
        axes.set_ylim(middle - 0.6 * span, middle + 0.6 * span)


def logarithmic_if_wide(axes: Axes, values: np.ndarray) -> bool:
    """Whether values cover orders of magnitude, and the axis has become logarithmic for that."""
    known = values[np.isfinite(values)]
    if not len(known) or known.min() <= 0 or known.max() < 100 * known.min():
        return False
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(number)
    axes.minorticks_off()
    return True


def palette(count: int) -> list[Any]:
    """Colours for `count` things; many of them get an even range from dark to light."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 1, count)))


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", pil_kwargs={"compress_level": 4})
    return file.getvalue()
