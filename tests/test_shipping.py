"""A run's folder on its way home: everything arrives, in an order that leaves a run behind, and nothing else does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proximo.errors import TrainingError
from proximo.fleet.shipping import Contents, Outbox, Parcel, read_folder, unpack, write_folder
from proximo.run_dir.directory import RunDirectory


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    (folder / "checkpoints").mkdir(parents=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[RunDirectory]:
    with contextlib.closing(RunDirectory(tmp_path / "home")) as directory:
        yield directory


def held(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_what_is_new_is_sent_and_what_is_gone_is_removed(there: Path, home: RunDirectory) -> None:
    outbox = Outbox(there)
    (there / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st')
    (there / "checkpoints" / "step_1").write_bytes(b"one")
    (there / ".config.yaml.abc.partial").write_bytes(b"half")
    parcel = outbox.pack(0)
    assert parcel == Parcel(1, 0, b'{"step": 1}\n', {"checkpoints/step_1": b"one"}, [])
    unpack(parcel, home)
    (there / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n')
    (there / "checkpoints" / "step_1").unlink()
    (there / "checkpoints" / "step_2").write_bytes(b"two")
    parcel = outbox.pack(1)
    assert parcel == Parcel(2, 12, b'{"step": 2}\n', {"checkpoints/step_2": b"two"}, ["checkpoints/step_1"])
    unpack(parcel, home)
    assert held(home.path) == {"metrics.jsonl": b'{"step": 1}\n{"step": 2}\n', "checkpoints/step_2": b"two"}
    assert outbox.pack(2) == Parcel(3, 24, b"", {}, [])


def test_what_did_not_arrive_is_sent_again(there: Path) -> None:
    outbox = Outbox(there)
    (there / "metrics.jsonl").write_bytes(b"a\n")
    (there / "config.yaml").write_bytes(b"seed: 1")
    assert outbox.pack(0).files == {"config.yaml": b"seed: 1"}
    again = outbox.pack(0)
    assert (again.number, again.rows_at, again.rows, again.files) == (2, 0, b"a\n", {"config.yaml": b"seed: 1"})
    assert outbox.pack(2).files == {}


def test_a_run_that_goes_on_elsewhere_cuts_its_last_rows_at_home_too(there: Path, home: RunDirectory) -> None:
    """Rows have times in them: those that are made again differ."""
    home.append([{"step": 1}, {"step": 2, "time": 7}])
    (home.path / "result.json").write_bytes(b"{}")
    outbox = Outbox(there, write_folder(there, read_folder(home.path)))
    assert held(there) == held(home.path)
    unpack(outbox.pack(0), home)
    (there / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2, "time": 11}\n{"step": 3, "time": 12}\n')
    (there / "result.json").unlink()
    unpack(outbox.pack(1), home)
    assert held(home.path) == held(there)
    (there / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    unpack(outbox.pack(2), home)
    assert held(home.path) == held(there)


def test_rows_that_are_here_already_stay(home: RunDirectory) -> None:
    """A crash while rows are written must not cost those that a checkpoint counts on."""
    home.splice(0, b"one\ntwo\n")
    inode = (home.path / "metrics.jsonl").stat().st_ino
    home.splice(0, b"one\ntwo\nthree\n")
    home.splice(4, b"2\n")
    assert (home.path / "metrics.jsonl").read_bytes() == b"one\n2\n"
    assert (home.path / "metrics.jsonl").stat().st_ino == inode
    with pytest.raises(OSError, match="rows before these are missing"):
        home.splice(7, b"four\n")


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/passwd", "checkpoints/../../evil", ".bashrc", "a/b/c/d", "metrics.jsonl", "a//b", "", "a\n"],
)
def test_names_that_no_run_has_are_refused(name: str, home: RunDirectory) -> None:
    before = held(home.path.parent)
    for parcel in (Parcel(1, 0, b"", {name: b"x"}), Parcel(1, 0, b"", {}, [name])):
        with pytest.raises(TrainingError, match="A node has sent a file that no run has"):
            unpack(parcel, home)
    assert held(home.path.parent) == before


def test_links_are_neither_followed_nor_sent(there: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (there / "link").symlink_to(tmp_path / "secret")
    assert Outbox(there, Contents()).pack(0).files == {}
