"""The space of a study, as a table."""

from __future__ import annotations

from rich.table import Table

from proximo.display.printing import safe
from proximo.tuning.charts import shown
from proximo.tuning.space import MINIBATCHES, Dimension, Space

FORMS = {"log": "log-uniform", "uniform": "uniform", "int": "whole numbers"}


def space_table(space: Space) -> Table:
    """A row for each setting that is searched."""
    table = Table(box=None, pad_edge=False)
    for title in ("searched", "values", "when"):
        table.add_column(title, overflow="fold")
    for dimension in space:
        conditions = (f"{path} is {' or '.join(map(shown, values))}" for path, values in dimension.when)
        table.add_row(safe(_name(dimension)), safe(_values(dimension)), safe(", ".join(conditions)))
    return table


def _name(dimension: Dimension) -> str:
    return f"{dimension.path} (number of minibatches)" if dimension.form == MINIBATCHES else dimension.name


def _values(dimension: Dimension) -> str:
    if dimension.choices:
        return ", ".join(map(shown, dimension.choices))
    return f"{shown(dimension.low)} to {shown(dimension.high)}, {FORMS[dimension.form]}"
