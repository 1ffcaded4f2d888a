"""Several processes of one run: the same bits as one, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from killed import assert_same_run
from proximo.cli.processes import check_processes, folder_of
from proximo.errors import UserError
from proximo.train.peers import all_envs, leads, several, told_by_all

SMALL = "--no-preset --no-mlflow --quiet --set env.num_envs=4 --set ppo.rollout_length=16 --set ppo.minibatch_size=32"
SMALL += " --set network.hidden_sizes=[16] --set eval.frequency=3 --set train.shards=2"
KINDS = {
    "compiled": "gymnax/CartPole-v1 --steps 512",
    "host": "CartPole-v1 --steps 320 --set env.workers=2",
    "memory": "gymnax/CartPole-v1 --steps 320 --set network.memory=lstm",
    "agents": "jaxmarl/MPE_simple_spread_v3 --steps 320 --set ppo.minibatch_size=96",
}


def proximo(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "proximo", *" ".join(arguments).split()]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    _, said = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("node:1", None, 2, 2), "--coordinator HOST:PORT and --process I belong together"),
        (("node:1", 2, 2, 2), "--process 2 is one of --processes N, numbered from 0 to N - 1"),
        (("node:1", 0, None, 2), "--process 0 is one of --processes N, numbered from 0 to N - 1"),
        ((None, None, 2, 1), "--processes 2 does not divide train.shards=1"),
        ((None, None, 4, 6), "--processes 4 does not divide train.shards=6"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    given: tuple[str | None, int | None, int | None, int], sentence: str
) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_processes(*given)


def test_flags_that_fit_are_taken() -> None:
    check_processes(None, None, None, 1)
    check_processes(None, None, 2, 4)
    check_processes("node:1", 1, 2, 2)


def test_one_process_is_alone() -> None:
    assert not several()
    assert leads()
    assert all_envs([b"a", b""], 2) == [b"a", b""]
    np.testing.assert_array_equal(told_by_all([3, 5], 2), [[3, 5]])


def test_only_the_first_process_writes_where_the_user_wants(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    for process in (None, 0):
        with folder_of(process, tmp_path) as folder:
            assert folder == tmp_path
    with folder_of(1, None, tmp_path) as folder:
        assert folder is not None
        assert folder != tmp_path
        assert (folder / "config.yaml").read_text() == "seed: 1\n"
    assert not folder.exists()


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_have_the_bits_of_one(kind: str, tmp_path: Path) -> None:
    one, two = (f"train {KINDS[kind]} {SMALL} --out {tmp_path / name}" for name in ("one", "two"))
    finished(proximo(one))
    finished(proximo(two, "--processes 2"))
    assert_same_run(tmp_path / "one", tmp_path / "two")
    finished(proximo(f"resume {tmp_path / 'one'} --steps 64 --quiet --processes 2"))
    finished(proximo(f"resume {tmp_path / 'two'} --steps 64 --quiet"))
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_one_process_is_the_end_of_all(number: signal.Signals, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = proximo(f"train gymnax/CartPole-v1 {SMALL} --steps 1_000_000 --out {run} --processes 2")
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert started.poll() is None
        time.sleep(0.2)
    (second,) = [pid for pid in children(started.pid) if b"--process\0001\0" in command_of(pid)]
    os.kill(second, number)
    said = finished(started, 1 if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:
        assert "Process 1 of 2 was ended by SIGKILL" in said
    finished(proximo(f"resume {run} --steps 64 --quiet"))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
