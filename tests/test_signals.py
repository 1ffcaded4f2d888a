"""Signals to a run: at each of its moments it ends in good order, can be gone on with, and leaves no process behind.

`signalled.py` sends them. `make test-faults` runs the whole matrix, `make test` a sample of it.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from killed import assert_same_run, lines
from proximo import PPOTrainer
from proximo.experiment.plan import Plan
from proximo.experiment.progress import Progress
from proximo.experiment.runner import carry_out
from proximo.run_dir.read import is_complete
from proximo.train import checkpoint
from proximo.train.interrupt import Interrupt
from test_faults import running, wait_until

TESTS = Path(__file__).parent
COMMAND = [sys.executable, "-c", "from proximo.cli import main; main()"]
SETTINGS = {
    "env.num_envs": 4,
    "ppo.rollout_length": 16,
    "ppo.minibatch_size": 32,
    "ppo.epochs_per_update": 1,
    "network.hidden_sizes": [16],
    "eval.frequency": 7,
    "eval.episodes": 3,
    "checkpoint.every_steps": 256,
    "checkpoint.num_checkpoints": 2,
}
STEPS = 64 * 10
JAX, HOST = "gymnax/CartPole-v1", "CartPole-v1"
ENVS = {"compiled": JAX, "workers": HOST, "experiment": HOST, "threads": JAX}
"""Runs, and experiments: of host environments in processes of their own, and of JAX environments in threads."""
PHASES = ("start", "compile", "rollout", "update", "evaluation", "checkpoint", "final", "pictures")
ENDING = tuple(itertools.product(("TERM", "INT", "HUP"), ("process", "group")))
SAVING = tuple(itertools.product(("USR1",), ("process", "group")))
MATRIX = [(*one, *sent) for one in itertools.product(ENVS, PHASES) for sent in ENDING + SAVING]
MATRIX += [("workers", "environments", *sent) for sent in ENDING + SAVING]
MATRIX += [(*one, "everyone") for one in itertools.product(ENVS, ("rollout", "evaluation"), ("TERM", "USR1"))]
SAMPLE = [
    ("compiled", "update", "HUP", "process"),
    ("workers", "rollout", "TERM", "group"),
    ("workers", "checkpoint", "USR1", "everyone"),
    ("experiment", "evaluation", "HUP", "everyone"),
]
BEFORE_THE_RUN = ("start",)
AFTER_TRAINING = ("final", "pictures")


def family(mark: Path) -> list[int]:
    """The running processes that were started with this mark in their environment."""
    word, found = f"SIGNALLED_MARK={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "environ").read_bytes().split(b"\0") and running(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def words(kind: str, out: Path, env: Any = None, steps: int = STEPS) -> list[Any]:
    """The command line of a run or an experiment."""
    given = SETTINGS | {"env.workers": 2 if kind == "workers" else 0}
    flags = itertools.chain.from_iterable(("--set", f"{name}={value}") for name, value in given.items())
    rest = ["--no-preset", "--steps", steps, "--out", out, *flags]
    if kind in ("experiment", "threads"):
        return ["experiment", env or ENVS[kind], "--trials", 2, "--jobs", 2, *rest]
    return ["train", env or ENVS[kind], *rest]


def start(
    args: Sequence[object],
    folder: Path,
    what: str = "never TERM process",
    wrapped: Sequence[str] = (),
    command: Sequence[str] = COMMAND,
    **keywords: Any,
) -> subprocess.Popen[str]:
    """A process of the command line in a session of its own, which is sent a signal on the way."""
    places = os.pathsep.join([str(TESTS / "started"), str(TESTS), os.environ.get("PYTHONPATH", "")])
    own = {"SIGNALLED": what, "SIGNALLED_MARK": str(folder / "mark"), "PYTHONPATH": places}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(
        [*wrapped, *command, *map(str, args)], text=True, env=os.environ | own, cwd=folder, **(streams | keywords)
    )


@pytest.fixture(autouse=True, scope="module")
def signals_as_in_a_terminal() -> Iterator[None]:
    """What is started from here hears SIGINT and SIGHUP, also when the tests run in the background or under `nohup`."""
    heard: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in heard if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, heard[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder; whatever was started in it is killed at the end."""
    yield tmp_path
    for pid in family(tmp_path / "mark"):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What undisturbed runs come to, of each kind."""
    made = {}

    def get(kind: str) -> Any:
        if kind not in made:
            out = tmp_path_factory.mktemp(kind) / "run"
            keywords: dict[str, Any] = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
            workers: dict[str, Any] = {"env_workers": 2 if kind == "workers" else 0}
            PPOTrainer(ENVS[kind], out=out, preset=False, total_timesteps=STEPS, **keywords, **workers).train()
            made[kind] = out
        return made[kind]

    return get


def go_on(kind: str, out: Path) -> None:
    """Do what is missing."""
    if kind in ("experiment", "threads"):
        carry_out(Plan.load(out), out, jobs=2, progress=Progress())
    else:
        PPOTrainer.resume(out).train()


def check(kind: str, phase: str, name: str, target: str, folder: Path, whole: Callable[[str], Any]) -> None:
    out, number = folder / "out", signal.Signals[f"SIG{name}"]
    process = start(words(kind, out), folder, f"{phase} {name} {target}")
    said, errors = process.communicate(timeout=300)
    assert (folder / "mark").exists(), f"nothing was sent:\n{said}{errors}"
    assert errors == ""
    assert process.returncode == (0 if name == "USR1" else 128 + number), said
    assert wait_until(lambda: not family(folder / "mark"), 10), "processes are left behind"
    runs = [out / run.folder for run in Plan.load(out).runs] if kind in ("experiment", "threads") else [out]
    if name == "USR1":
        assert all(map(is_complete, runs))
        saved = "steps, as asked" in said
        if phase not in (*BEFORE_THE_RUN, *AFTER_TRAINING):
            assert saved, said
        elif runs == [out]:  # in an experiment, another run may be at work
            assert not saved, said
    elif phase in BEFORE_THE_RUN and runs == [out]:
        assert not out.exists()
        return
    else:
        begun = [run for run in runs if (run / "config.yaml").exists()]
        assert begun or phase in BEFORE_THE_RUN
        for run in begun:
            reason = json.loads((run / "result.json").read_text())["stop_reason"]
            assert reason in (("interrupted",) if phase not in AFTER_TRAINING else ("interrupted", "budget"))
            assert checkpoint.steps(run)
        if not all(map(is_complete, runs)):
            go_on(kind, out)
    if kind in ("compiled", "workers"):
        assert_same_run(whole(kind), out)
    for run in runs:
        assert is_complete(run)
        assert [json.loads(line)["update"] for line in lines(run)] == list(range(1, 11))


def named(case: tuple[str, ...]) -> str:
    return "-".join(case)


@pytest.mark.faults
@pytest.mark.parametrize("case", MATRIX, ids=named)
def test_matrix(case: tuple[str, str, str, str], folder: Path, whole: Callable[[str], Any]) -> None:
    check(*case, folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", SAMPLE, ids=named)
def test_sample(case: tuple[str, str, str, str], folder: Path, whole: Callable[[str], Any]) -> None:
    check(*case, folder, whole)


def wait_for_rows(out: Path, process: subprocess.Popen[str]) -> None:
    rows = out / "metrics.jsonl"
    assert wait_until(lambda: process.poll() is not None or (rows.exists() and rows.stat().st_size > 0), 120)
    assert process.stderr is not None
    assert process.poll() is None, process.stderr.read()


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from `timeout`, which sends it to its child and then to the group that the child is in."""
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert (interrupt.signal, interrupt.impatient) == (signal.SIGTERM, False)
        monkeypatch.setattr("proximo.train.interrupt.SAME_SECONDS", 0.0)
        os.kill(os.getpid(), signal.SIGHUP)  # a terminal that closes, and its shell, both say so
        assert not interrupt.impatient
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.impatient


def test_an_interrupt_within_another_is_told_what_that_one_is() -> None:
    with Interrupt() as outer, Interrupt() as inner:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [inner.save_asked(), inner.save_asked(), outer.save_asked()] == [True, False, True]
        os.kill(os.getpid(), signal.SIGTERM)
        assert inner.signal == outer.signal == signal.SIGTERM
    with Interrupt() as another:
        assert (another.signal, another.save_asked()) == (None, False)


def test_handlers_of_the_users_own_are_given_back_and_that_of_sigusr1_is_left_alone() -> None:
    seen: list[int] = []

    def mine(*_: Any) -> None:
        seen.append(1)

    before = {number: signal.signal(number, mine) for number in (signal.SIGUSR1, signal.SIGHUP)}
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGHUP)
            assert (seen, interrupt.save_asked(), interrupt.signal) == ([1], False, signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.getsignal(signal.SIGUSR1) is mine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.slow
def test_timeout_ends_a_run_with_workers_in_good_order(folder: Path) -> None:
    out = folder / "out"
    process = start(words("workers", out, steps=10_000_000), folder, wrapped=["timeout", "1000"])
    wait_for_rows(out, process)
    os.kill(process.pid, signal.SIGTERM)  # as after its time
    said, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (143, ""), said
    assert json.loads((out / "result.json").read_text())["stop_reason"] == "interrupted"
    assert wait_until(lambda: not family(folder / "mark"), 10)


@pytest.mark.slow
def test_nohup_is_respected(folder: Path) -> None:
    out = folder / "out"
    process = start(words("workers", out), folder, "rollout HUP everyone", wrapped=["nohup"], stdin=subprocess.DEVNULL)
    said, errors = process.communicate(timeout=100)
    assert (folder / "mark").exists()
    assert (process.returncode, errors) == (0, ""), said
    assert is_complete(out)


@pytest.mark.slow
def test_a_terminal_that_closes_stops_the_run_in_good_order(folder: Path) -> None:
    """Writing to it fails from then on."""
    ours, theirs = pty.openpty()
    out = folder / "out"

    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = start(words("workers", out, steps=10_000_000), folder, wrapped=[sys.executable, "-c", take], **streams)
    os.close(theirs)
    rows = out / "metrics.jsonl"
    until = time.monotonic() + 100
    while not (rows.exists() and rows.stat().st_size) and time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 65536)
    os.close(ours)
    assert process.wait(60) == 128 + signal.SIGHUP
    assert json.loads((out / "result.json").read_text())["stop_reason"] == "interrupted"
    assert wait_until(lambda: not family(folder / "mark"), 10)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_run_is_not_late(workers: int, folder: Path) -> None:
    """Ctrl-Z for twice as long as an environment may take, in the middle of a step."""
    out = folder / "out"
    flags = ["--set", "env.timeout=1", "--set", f"env.workers={workers}"]
    process = start([*words("workers", out, "faulty:Slow-v0", 10_000_000), *flags], folder)
    wait_for_rows(out, process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.3)
    size = len(lines(out))
    assert wait_until(lambda: process.poll() is not None or len(lines(out)) > size, 60)
    os.kill(process.pid, signal.SIGTERM)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, ""), said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["workers", "experiment"])
def test_threads_of_an_environment_do_not_keep_a_process_that_is_done(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALLED_GRACE", "1")
    out = folder / "out"
    flags = ["--set", "env.workers=0"]
    process = start([*words(kind, out, "faulty:Threaded-v0", 128), *flags], folder)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, said + errors
    if kind == "workers":
        assert "These threads did not end, and were abandoned: endless" in errors
    assert wait_until(lambda: not family(folder / "mark"), 15)


FORKED = """
import multiprocessing, time
from functools import partial
from proximo.config import EnvConfig
from faulty import Helped
from made import gymnasium_source
def main():
    with gymnasium_source(Helped).open_envs(4, EnvConfig(workers=2)) as pool:
        pool.reset(0)
        process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=[1000])
        process.start()
        process.terminate()
        process.join(20)
        print(process.exitcode)
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_only_what_belongs_to_a_run_is_deaf(folder: Path) -> None:
    """Other processes of the same fork server can be terminated, and so can programs that environments start."""
    (folder / "script.py").write_text(FORKED)
    process = start([], folder, command=[sys.executable, "script.py"])
    said, errors = process.communicate(timeout=60)
    assert (said.split(), errors) == (["-15"], "")
    assert not family(folder / "mark")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_the_interface_of_mlflow_ends_with_ours(number: int, folder: Path) -> None:
    (folder / "runs").mkdir()
    (folder / "runs" / "mlflow.db").touch()
    process = start(["ui"], folder)
    assert process.stdout is not None
    assert "shows the runs" in process.stdout.readline()
    assert len(family(folder / "mark")) > 1
    os.kill(process.pid, number)
    process.communicate(timeout=60)
    assert wait_until(lambda: not family(folder / "mark"), 20)
