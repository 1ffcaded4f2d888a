"""Files that are whole or not there, and the files of runs: regular ones, of a size that they may have."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from proximo.run_dir import files
from proximo.run_dir.files import check_inside, open_inside, read_inside, read_json, read_lines, write_atomically


def hostile(folder: Path) -> dict[str, str]:
    """One of each kind of thing that is no regular file, by what an error calls it."""
    (folder / "elsewhere").write_text("keep me")
    (folder / "link").symlink_to("elsewhere")
    (folder / "nowhere").symlink_to("missing")
    (folder / "endless").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(folder)  # the name of a socket must be short
        listening.bind("socket")
        os.chdir(here)
    kinds = {"link": "link", "nowhere": "link", "endless": "link", "pipe": "FIFO", "folder": "folder"}
    return kinds | {"socket": "socket"}


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    for name, kind in hostile(tmp_path).items():
        started = time.monotonic()
        with pytest.raises(OSError, match=kind) as caught:
            read_inside(tmp_path / name, 100)
        assert f"{name} is a {kind}" in str(caught.value.strerror) or kind == "folder"
        assert time.monotonic() - started < 1
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path / "missing")
    assert read_inside(tmp_path / "elsewhere", 7) == b"keep me"


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345678")
    with pytest.raises(OSError, match="larger than 7 bytes"):
        read_inside(file, 7)
    file.write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(file)


def test_lines_come_one_by_one_and_have_a_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_ROW", 5)
    file = tmp_path / "rows"
    file.write_bytes(b"1234\n\n12")
    with file.open("rb") as rows:
        assert list(read_lines(rows)) == [b"1234\n", b"\n", b"12"]
    file.write_bytes(b"1234\n12345\n")
    with file.open("rb") as rows, pytest.raises(ValueError, match="longer than 5 bytes"):
        list(read_lines(rows))


@pytest.mark.parametrize("name", ["link", "endless", "pipe", "socket", "folder"])
def test_folders_hold_files_and_folders_alone(tmp_path: Path, name: str) -> None:
    kind = hostile(tmp_path)[name]
    run = tmp_path / "run"
    (run / "models").mkdir(parents=True)
    (run / "models" / "file").write_text("")
    reached = tmp_path / "reached"
    reached.symlink_to(run)
    check_inside(reached)  # the folder itself may be reached through a link
    os.rename(tmp_path / name, run / "models" / "odd")
    if name == "folder":
        check_inside(run)
        return
    with pytest.raises(OSError, match=f"models/odd in it is a {kind}"):
        check_inside(run)


def test_a_name_that_is_no_text_does_not_cost_a_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "a\udcffb")
    assert (tmp_path / "file").read_text() == r"a\udcffb"


@pytest.mark.slow
def test_paths_are_shown_as_they_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "START", tmp_path)
    assert files.shown(tmp_path / "runs" / "x") == "runs/x"
    assert files.shown(tmp_path.parent) == str(tmp_path.parent)
