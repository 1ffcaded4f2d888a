"""Every file that is read, damaged at random: each reader works or refuses in words, soon, and touches nothing else.

A few seconds for each file here; `make test-faults` goes on for minutes. A failure names the seed that repeats it.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from rich.console import Console as Rich

import probes
from damaged import load_checkpoint, load_policy, trouble
from proximo import PPOTrainer
from proximo.config import Config
from proximo.display.tables import runs_lines
from proximo.envs.groups import one_group
from proximo.errors import UserError
from proximo.experiment.compare import gather
from proximo.experiment.plan import Plan, make_plan, make_trials, read_plan
from proximo.experiment.tables import comparison_table, plan_table
from proximo.run_dir.directory import RunDirectory
from proximo.run_dir.read import best_of, find_run, list_runs, read_config
from proximo.train import checkpoint
from proximo.train.progress import Progress
from proximo.train.setup import find_resumable, is_complete

GROUPS = one_group(spaces.Discrete(2), spaces.Discrete(2))
SECONDS, LONG = 1.0, 120.0
SIZES = dict(num_envs=2, rollout_length=8, minibatch_size=8, epochs_per_update=1, hidden_sizes=[8], total_timesteps=32)
SETTINGS: dict[str, Any] = SIZES | dict(eval_frequency=1, eval_episodes=1, checkpoint_every_steps=16)
EXPERIMENT = """envs: [CartPole-v1, Acrobot-v1]
seeds: [1, 2]
base: {ppo: {gamma: 0.9}, train: {total_timesteps: 1000}}
trials: {a: {ppo.clip_epsilon: 0.1}, b: {seeds: 3}}
grid: {ppo.gae_lambda: [0.9, 0.95]}
"""
WORDS = [
    *(b"&a [*a, *a]", b"<<: *a", b"!!python/object/apply:os.system [touch marker]", b"? [1]\n: 2", b"%YAML 9.9\n---\n"),
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"-0", b"0x" + b"f" * 6000, b"9" * 5000, b"1:2:3"),
    *(b"[" * 3000, b"{a: " * 2000, b"]}", b'"', b"'", b"\n", b"\t", b"\0", b": ", b"- ", b", ", b"# ", b"---\n"),
    *(b"\x1b[2J\x1b]52;c;aGk=\x07", b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', "\u202e\u2028".encode(), b"x" * 3000),
    *(b"{}", b"[]", b'{"a": [1, 2]}', b"../../outside", b"/dev/zero", b"step", b"runs/../../x", b"2020-13-45"),
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data`, damaged a few times."""
    for _ in range(rng.randint(1, 4)):
        place, size = rng.randrange(len(data) + 1), rng.choice([1, 2, 8, 50, 500])
        damage = rng.randrange(6)
        if damage == 0 and place < len(data):
            data = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        elif damage == 1:
            data = data[:place] + data[place + size :]
        elif damage == 2:
            data = data[: place + size] + data[place:]
        elif damage == 3:
            data = data[:place] + rng.choice(WORDS) + data[place:]
        elif damage == 4:
            # In the place of a value: what comes after a colon, up to the end of the line.
            colons = [i for i in range(len(data)) if data[i : i + 2] == b": "]
            start = rng.choice(colons) + 2 if colons else place
            stops = [found for stop in (b"\n", b",", b"}") if (found := data.find(stop, start)) >= 0]
            data = data[:start] + rng.choice(WORDS) + data[min(stops, default=len(data)) :]
        else:
            data = data[:place]
    return data


def spoiled(file: Path, data: bytes, rng: random.Random, outside: Path) -> None:
    """Write `data` damaged, or put something that is no file in its place."""
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)
    kind = rng.randrange(25)
    if kind == 0:
        file.symlink_to(rng.choice([outside / "file", outside, Path("/dev/zero"), Path("nowhere"), file]))
    elif kind == 1:
        os.mkfifo(file)
    elif kind == 2:
        file.mkdir()
    else:
        file.write_bytes(mutated(data, rng))


def shown(what: Any) -> None:
    """Print it, and look at what a terminal would get."""
    out = io.StringIO()
    Rich(file=out, width=200, emoji=False, highlight=False).print(what)
    assert all(letter.isprintable() or letter == "\n" for letter in out.getvalue()), repr(out.getvalue())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs/run`, complete; `experiment`, planned."""
    home = tmp_path_factory.mktemp("fuzz")
    with probes.without_pictures():
        PPOTrainer("gymnax/CartPole-v1", out=home / "runs" / "run", preset=False, **SETTINGS).train()
    trials = make_trials({"a": {"ppo.gamma": 0.9}, "b": {}}, None, 2)
    make_plan(["CartPole-v1"], trials, {}, {}).save(home / "experiment")
    (home / "experiment.yaml").write_text(EXPERIMENT)
    (home / "outside").mkdir()
    (home / "outside" / "file").write_text("keep me")
    return home


def read_all(home: Path) -> Iterator[Callable[[], Any]]:
    """What the commands do with the folders of runs, but for training and playing."""
    run = home / "runs" / "run"
    listed = list_runs(home / "runs")
    runs_lines(listed, 80)
    for one in listed:
        one.as_json()
        best_of(listed, one.env) if one.status.episode_return is not None else None
    yield lambda: read_config(find_run(run))
    yield lambda: gather([run])
    yield lambda: gather([home / "runs"])
    yield lambda: is_complete(run, Progress(Config(), GROUPS))
    yield lambda: find_resumable(run, False)
    yield lambda: RunDirectory.reopen(run, 2).close()


def read_experiment(home: Path) -> Iterator[Callable[[], Any]]:
    yield lambda: shown(plan_table(Plan.load(home / "experiment")))
    yield lambda: gather([home / "experiment"])


def compare(home: Path) -> None:
    from proximo.experiment.summarize import Comparison, summarize

    found = gather([home / "runs"])
    shown(comparison_table(summarize(Comparison("title", tuple(found)), home)))


TARGETS: dict[str, Callable[[Path], Iterable[Callable[[], Any]]]] = {
    "runs/run/config.yaml": lambda home: [*read_all(home), lambda: compare(home)],
    "runs/run/result.json": lambda home: [*read_all(home), lambda: compare(home)],
    "runs/run/metrics.jsonl": lambda home: [*read_all(home), lambda: compare(home)],
    "experiment.yaml": lambda home: [lambda: shown(plan_table(read_plan(home / "experiment.yaml", {})))],
    "experiment/experiment.json": read_experiment,
    "runs/run/models/final_actor.safetensors": lambda home: [
        lambda: load_policy(home / "runs/run/models/final_actor.safetensors")
    ],
    "runs/run/checkpoints/step_000000000032.safetensors": lambda home: [
        lambda: load_checkpoint(home / "runs/run/checkpoints/step_000000000032.safetensors"),
        lambda: find_resumable(home / "runs" / "run", False),
    ],
}


def fuzz(whole: Path, tmp_path: Path, name: str, seconds: float, first: int) -> int:
    """Damage one file again and again; how often."""
    home = tmp_path / "home"
    shutil.copytree(whole, home)
    data = (home / name).read_bytes()
    others = {file: file.read_bytes() for file in home.rglob("*") if file.is_file() and file != home / name}
    until, seed = time.monotonic() + seconds, first
    while time.monotonic() < until or seed < first + 10:
        spoiled(home / name, data, random.Random(seed), home / "outside")
        calls: list[Any] = []
        found = [trouble(lambda: calls.extend(TARGETS[name](home)))]  # noqa: B023
        found += [trouble(call) for call in calls]
        assert not any(found), f"seed {seed}: {[text for text in found if text]}"
        seed += 1
    assert {file: file.read_bytes() for file in others} == others
    kept = {*others, home / name}
    assert not [file for file in home.rglob("*") if file.is_file() and file not in kept]
    return seed - first


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fuzz(whole, tmp_path, name, SECONDS, 0) >= 10


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_for_long(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    count = fuzz(whole, tmp_path, name, LONG, 10**6)
    print(f"{name}: {count:,} damaged files")


@pytest.mark.slow
def test_the_damage_is_real(whole: Path, tmp_path: Path) -> None:
    """Most of what is tried is no longer what it was, and much of it is refused."""
    data = (whole / "runs" / "run" / "config.yaml").read_bytes()
    file, refused = tmp_path / "config.yaml", 0
    for seed in range(40):
        damaged = mutated(data, random.Random(seed))
        file.write_bytes(damaged)
        try:
            read_config(tmp_path)
        except UserError:
            refused += 1
    assert refused >= 15


@pytest.mark.slow
def test_checkpoints_are_where_they_are_expected(whole: Path) -> None:
    assert checkpoint.steps(whole / "runs" / "run")[-1] == 32
