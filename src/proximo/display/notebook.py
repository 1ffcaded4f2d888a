"""A part of a notebook's output that is drawn again and again, as rich's `Live` does in a terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console as RichConsole
from rich.console import RenderableType

WIDTH = 100
SECONDS = 0.5
"""Between two drawings: each is a message to the browser."""
FORMAT = '<pre style="white-space: pre; overflow-x: auto; line-height: normal">{code}</pre>'


class NotebookArea:
    """Shows what `picture` gives; asks for it at most twice a second. rich's own needs ipywidgets, and says so instead
    of showing anything where they are not installed."""

    def __init__(self, picture: Callable[[], RenderableType]):
        self._picture = picture
        self._drawn = 0.0
        self._handle: Any = None

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(rendered(self._picture()), raw=True, display_id=True)

    def refresh(self) -> None:
        if time.monotonic() - self._drawn >= SECONDS:
            self._drawn = time.monotonic()
            self._handle.update(rendered(self._picture()), raw=True)

    def stop(self) -> None:
        """Leave nothing behind."""
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


def rendered(picture: RenderableType) -> dict[str, str]:
    """As notebooks take it: in HTML, and in letters alone."""
    page = RichConsole(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=True)
    page.print(picture)
    text = page.export_text(clear=False)
    return {"text/plain": text, "text/html": page.export_html(code_format=FORMAT, inline_styles=True)}
