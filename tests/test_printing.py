"""What is printed of a text that did not come from the program."""

from __future__ import annotations

import io

import pytest

from proximo.display.printing import make_rich, safe, say
from proximo.errors import UserError, printable


def printed(text: str) -> str:
    out = io.StringIO()
    make_rich(file=out, force_terminal=True, width=300).print(f"[bold]{safe(text)}[/bold]")
    return out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").rstrip("\n")


@pytest.mark.parametrize("text", ["run[/v2]", "x:smile:y", "[red]x[/red]", "[[", "a\\[b]", "±▁", "[/]", "name"])
def test_texts_are_printed_as_they_are(text: str) -> None:
    assert printed(text) == text


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07"),
        ("a\rb\x08", r"a\rb\x08"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eevil", r"\u202eevil"),
        ("\udcff", r"\udcff"),
        ("a\nb", "a\nb"),
    ],
)
def test_what_a_terminal_obeys_is_spelled_out(text: str, spelled: str) -> None:
    assert printable(text) == spelled
    assert printed(text) == spelled
    assert str(UserError(f"There is no {text}.")) == f"There is no {spelled}."


def test_passwords_are_not_printed() -> None:
    assert printed("at http://me:a/b@c@host") == "at http://***@host"


def said(text: str, terminal: bool = True) -> str:
    out = io.StringIO()
    say(make_rich(file=out, force_terminal=terminal, width=20, color_system=None), text)
    return out.getvalue()


def test_sentences_are_broken_between_words_in_a_terminal() -> None:
    assert said("one two three four five six") == "one two three four\nfive six\n"
    assert said("one two three four five six", terminal=False) == "one two three four five six\n"


def test_paths_and_commands_stay_whole() -> None:
    assert said("It is in /a/path/that/is/longer/than/a/line now.") == (
        "It is in\n/a/path/that/is/longer/than/a/line\nnow.\n"
    )
    assert (
        said("Try `proximo resume runs/x --steps 5`, please.") == "Try\n`proximo resume runs/x --steps 5`,\nplease.\n"
    )


def test_markup_takes_no_room_and_traces_stay_as_they_are() -> None:
    assert said("[bold]one[/bold] two three four five") == "one two three four\nfive\n"
    assert said("Error:\n  File of a trace that is long, line 3") == "Error:\n  File of a trace that is long, line 3\n"
