"""Everything that is printed goes through here."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape

from proximo.credentials import redacted
from proximo.errors import printable


def make_rich(**options: Any) -> RichConsole:
    """Where to print. A text is no emoji, whatever stands between colons in it."""
    return RichConsole(highlight=False, soft_wrap=True, emoji=False, **options)


def safe(text: object) -> str:
    """A text that did not come from the program, as it may be printed: no escape sequence, no markup, no password."""
    return escape(printable(redacted(str(text))))
