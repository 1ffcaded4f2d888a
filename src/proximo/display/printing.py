"""Everything that is printed goes through here."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.markup import escape, render

from proximo.credentials import redacted
from proximo.errors import printable


def make_rich(**options: Any) -> RichConsole:
    """Where to print. A text is no emoji, whatever stands between colons in it."""
    return RichConsole(highlight=False, soft_wrap=True, emoji=False, **options)


def say(rich: RichConsole, text: str, style: str = "") -> None:
    """Print sentences, with markup: in a terminal broken between words, so that words, paths and commands in backquotes
    stay whole and can be copied; elsewhere not broken at all."""
    for line in text.split("\n"):
        whole = not rich.is_terminal or line.startswith(" ")  # as in a traceback
        rich.print(line if whole else broken(line, rich.width), style=style or None)


def broken(line: str, width: int) -> str:
    """`line` with line breaks instead of spaces, where it would be wider than `width`."""
    lines: list[str] = []
    for word in re.findall(r"(?:`[^`]*`|\S)+", line):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and cell_len(render(longer).plain) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def safe(text: object) -> str:
    """A text that did not come from the program, as it may be printed: no escape sequence, no markup, no password."""
    return escape(printable(redacted(str(text))))
