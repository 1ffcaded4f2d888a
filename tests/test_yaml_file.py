"""YAML that is hostile: refused in a sentence, and soon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proximo import settings
from proximo.errors import UserError
from proximo.settings import from_assignments, from_file, from_mapping
from proximo.yaml_file import read_yaml


def bomb(start: str, step: Callable[[str], str]) -> str:
    """Ten levels, each ten times the one before."""
    lines = [f"a0: &a0 {start}"]
    lines += [f"a{i + 1}: &a{i + 1} {step(', '.join([f'*a{i}'] * 10))}" for i in range(10)]
    return "\n".join(lines)


HOSTILE = {
    "aliases ten levels deep": bomb("[x, x]", "[{}]".format),
    "aliases as a setting": bomb("[x, x]", "[{}]".format) + "\nppo: {gamma: *a10}",
    "merged keys ten levels deep": bomb("{x: 1}", "{{<<: [{}]}}".format),
    "30,000 keys": "agents: {members: {" + ", ".join(f"{i:x}: [a]" for i in range(30_000)) + "}}",
    "lists 5,000 deep": "ppo: {gamma: " + "[" * 5_000 + "]" * 5_000 + "}",
    "mappings 5,000 deep": "{a: " * 5_000 + "1" + "}" * 5_000,
    "an integer of 50,000 digits": "seed: " + "9" * 50_000,
    "an integer of 50,000 hexadecimal digits": "seed: 0x" + "f" * 50_000,
    "a key of 50,000 hexadecimal digits": "0x" + "f" * 50_000 + ": 1",
    "a long key": "x" * 100_000 + ": 1",
    "a megabyte": "#" * 2**20,
    "escape sequences": '"\\e[2J\\e]52;c;aGk=\\a": 1',
    "a clock without end": "seed: " + ":".join(["59"] * 5_000),
    "a python object": "seed: !!python/object/apply:os.system [touch marker]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_soon(tmp_path: Path, name: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(HOSTILE[name])
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        settings.build(from_file(file))
    assert time.monotonic() - started < 20
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 800
    assert text.endswith((".", "?"))


def test_honest_references_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("base: &b {gamma: 0.9}\nppo: {<<: *b, gae_lambda: 0.8}\nother: *b")
    read = read_yaml(file)
    assert read["ppo"] == {"gamma": 0.9, "gae_lambda": 0.8}
    assert read["other"] == {"gamma": 0.9}


def test_a_key_that_is_given_twice_is_found_among_many() -> None:
    keys = ", ".join(f"{i}: [x]" for i in range(2_000))
    with pytest.raises(UserError, match="must be names with lists"):
        from_assignments([f"agents.members={{{keys}, 7: [y]}}"])
    members = {str(i): ["x"] for i in range(10_001)}
    with pytest.raises(UserError, match="must list at most 10,000, not 10,001"):
        from_mapping({"agents": {"members": members}}, "config")


def test_what_the_user_names_may_be_a_link_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("seed: 3")
    (tmp_path / "link.yaml").symlink_to("file.yaml")
    assert from_file(tmp_path / "link.yaml") == {"seed": 3}
    read, write = os.pipe()

    def answer() -> None:
        os.write(write, b"seed: 4")
        os.close(write)

    threading.Timer(0.2, answer).start()
    assert from_file(Path(f"/dev/fd/{read}")) == {"seed": 4}
    os.close(read)


def test_what_never_ends_or_never_begins_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert from_file(tmp_path / "pipe") == {}  # nobody writes to it
    with pytest.raises(UserError, match="larger than 262,144 bytes"):
        from_file(Path("/dev/zero"))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_assignments(name: str) -> None:
    with pytest.raises(UserError) as caught:
        from_assignments([f"ppo.gamma={HOSTILE[name]}"])
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
