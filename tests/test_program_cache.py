"""Programs on disk: where they are, when they are not kept, and which go first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proximo.program_cache import prune

PROGRAM = """
import jax, sys
import proximo.program_cache as programs
from proximo.compile import prepare_backend

if sys.argv[1:]:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
programs.LEAST_SECONDS = 0.0
prepare_backend()
prepare_backend()
print(jax.config.jax_compilation_cache_dir)
print(jax.jit(lambda x: x * 2)(3.0))
"""


def run(folder: Path, *args: str, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    given = kept | {"XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *args]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_programs_are_kept_for_this_user_alone_and_damaged_ones_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "proximo" / "programs"
    assert run(tmp_path) == [str(folder), "6.0"]
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = list(folder.glob("*-cache"))
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:10])
    assert run(tmp_path) == [str(folder), "6.0"]


@pytest.mark.slow
def test_programs_are_not_kept_where_the_user_says_so_or_they_cannot_be(tmp_path: Path) -> None:
    assert run(tmp_path, PROXIMO_CACHE="0") == ["None", "6.0"]
    assert run(tmp_path, str(tmp_path / "own")) == [str(tmp_path / "own"), "6.0"]
    assert not (tmp_path / "proximo").exists()
    (tmp_path / "proximo").write_text("a file, where a folder is to be")
    assert run(tmp_path) == ["None", "6.0"]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    for number, name in enumerate(["c", "a", "b"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1_000 + number, 500))
    prune(tmp_path, 300)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}
    prune(tmp_path, 299)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    prune(tmp_path, 150)
    assert {path.name for path in tmp_path.iterdir()} == {"b"}
