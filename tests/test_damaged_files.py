"""Files that are damaged, forged or something else: refused in words, and nothing in them is ever run."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import damaged
import probes
from damaged import complaint, load_checkpoint, load_policy
from proximo import PPOTrainer
from proximo.envs.host.snapshot import decode, encode
from proximo.errors import UserError
from proximo.run_dir import tensors
from proximo.train import checkpoint, counters

SIZES = dict(num_envs=2, rollout_length=8, minibatch_size=8, epochs_per_update=1, hidden_sizes=[8], total_timesteps=32)
SETTINGS: dict[str, Any] = SIZES | dict(eval_frequency=0, eval_episodes=1, checkpoint_every_steps=16)
pytestmark = pytest.mark.slow
LOADERS = {"policy": load_policy, "checkpoint": load_checkpoint}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A policy, and the folders of a compiled and a host run that each stopped half way."""
    folder = tmp_path_factory.mktemp("whole")
    runs = {"compiled": "gymnax/CartPole-v1", "host": "CartPole-v1"}
    for name, env in runs.items():
        PPOTrainer(env, out=folder / name, preset=False, workers=0, **SETTINGS).train()
        shutil.copytree(folder / name, folder / f"{name}-half")
        checkpoint.newest(folder / f"{name}-half").unlink()
        (folder / f"{name}-half" / "result.json").unlink()
    found = SimpleNamespace(
        policy=folder / "compiled" / "models" / "final_actor.safetensors",
        checkpoint=checkpoint.newest(folder / "compiled-half"),
        host_checkpoint=checkpoint.newest(folder / "host-half"),
        run=folder / "compiled",
        half=folder / "compiled-half",
        host_half=folder / "host-half",
    )
    load_policy(found.policy)
    load_checkpoint(found.checkpoint)
    load_checkpoint(found.host_checkpoint)
    return found


Case = tuple[str, Iterable[str], Callable[[Path], Any]]
"""Its name, what to load it as, what writes it."""


def assert_refused(cases: Iterable[Case], path: Path) -> None:
    """Write each case to `path`; loading it must fail in words."""
    found = []
    for name, kinds, write in cases:
        write(path)
        found += [f"{name}, as a {kind}: {said}" for kind in kinds if (said := complaint(LOADERS[kind], path))]
    assert not found, "\n".join(found)


# Damage: every bit of a file is covered by its checksum.


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def overwritten(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def damages(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Named ways to damage a file; the same number of them for every file."""
    header = 8 + int.from_bytes(data[:8], "little")
    spots = {"the header": (8, header), "the data": (header, len(data))}
    yield from ((f"bit {bit} of byte {place}", flipped(data, place, bit)) for place in range(8) for bit in range(8))
    for name, (low, high) in spots.items():
        for _ in range(40):
            place, bit = rng.randrange(low, high), rng.randrange(8)
            yield f"bit {bit} of byte {place}, in {name}", flipped(data, place, bit)
        for _ in range(10):
            place = rng.randrange(low, high - 4)
            yield f"bytes from {place}, in {name}", overwritten(data, place, rng.randbytes(rng.randrange(1, 5)) + b"\0")
    yield from ((f"cut to {size} bytes", data[:size]) for size in range(9))
    for _ in range(10):
        size = rng.randrange(9, len(data))
        yield f"cut to {size} bytes", data[:size]
    yield "cut by a byte", data[:-1]
    yield "cut after the header", data[:header]
    yield from ((f"and {more!r}", data + more) for more in (b"\0", b" ", b"\n", data[-8:], data, bytes(1000)))
    half = len(data) // 2
    yield "the first half twice", data[:half] * 2
    yield "the second half twice", data[half:] * 2
    yield "the second half first", data[half:] + data[:half]
    # The same content, spelled otherwise.
    place = data.index(b"1e-05")
    yield "1E-05 for 1e-05", overwritten(data, place, b"1E-05")
    end = data.rindex(b"}", 0, header)
    yield "a line break for a space", overwritten(data, end + 1, b"\n") if end + 1 < header else data[:-1]


NUM_DAMAGES = 64 + 100 + 9 + 10 + 2 + 6 + 3 + 2


@pytest.mark.parametrize("kind", ["policy", "checkpoint", "host_checkpoint"])
def test_damage_is_found(whole: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    data = getattr(whole, kind).read_bytes()
    cases = [(name, bad) for name, bad in damages(data, random.Random(0)) if bad != data]
    assert len(cases) >= NUM_DAMAGES - 5  # bytes may be overwritten with what they were
    load = kind.removeprefix("host_")
    writers = [(name, [load], partial(Path.write_bytes, data=bad)) for name, bad in cases]
    assert_refused(writers, tmp_path / "file.safetensors")


# Forgeries: the checksum is right.

GONE = object()
Change = Callable[[dict[str, np.ndarray], Any], Any]
"""What a forger does to the arrays of a file, and to what it says of itself."""


def put(where: str, value: Any) -> Change:
    """In the description, at a path such as `config/ppo/gamma`, something else."""

    def change(held: dict[str, np.ndarray], meta: Any) -> None:
        *parts, last = where.split("/")
        for part in parts:
            meta = meta[part]
        if value is GONE:
            del meta[last]
        else:
            meta[last] = value

    return change


def tensor(name: str, make: Callable[[np.ndarray], Any]) -> Change:
    """Another array under a name that contains `name`."""

    def change(held: dict[str, np.ndarray], meta: Any) -> None:
        found = next(key for key in sorted(held) if name in key)
        held[found] = make(held[found])

    return change


def renamed(name: str, new: str | None) -> Change:
    def change(held: dict[str, np.ndarray], meta: Any) -> None:
        found = next(key for key in sorted(held) if name in key)
        array = held.pop(found)
        if new is not None:
            held[new] = array

    return change


def extra(name: str) -> Change:
    return lambda held, meta: held.update({name: np.zeros(3, np.float32)})


def box(**changes: Any) -> dict[str, Any]:
    return {"type": "Box", "low": [-1], "high": [1], "shape": [4], "dtype": "float32"} | changes


def nested(depth: int, kind: str = "Dict") -> dict[str, Any]:
    space = box()
    for _ in range(depth):
        space = {"type": kind, "spaces": [["x", space]] if kind == "Dict" else [space]}
    return space


SPACES: dict[str, Any] = {
    "unknown type": {"type": "Teapot"},
    "no type": {},
    "null": None,
    "a list": [1, 2],
    "a text": "Box(4)",
    "type is a list": {"type": []},
    "box without shape": {"type": "Box", "low": [0], "high": [1], "dtype": "float32"},
    "box of negative shape": box(shape=[-4]),
    "box of two negatives": box(shape=[-2, -2]),
    "box of half a number": box(shape=[2.5]),
    "box of texts": box(shape=["4"]),
    "box of truth": box(shape=[True, 4]),
    "box of objects": box(dtype="object"),
    "box of O": box(dtype="O"),
    "box of a long text": box(dtype="S2000000000"),
    "box of voids": box(dtype="V2000000000"),
    "box of records": box(dtype="f4,f4"),
    "box of dates": box(dtype="datetime64[s]"),
    "box of complex": box(dtype="complex64"),
    "box of nothing": box(dtype=None),
    "box of no type": box(dtype="teapot"),
    "box of a listed type": box(dtype=[["x", "f4"]]),
    "box upside down": box(low=[1], high=[-1]),
    "box from NaN": box(low=[float("nan")]),
    "box to NaN": box(high=["nan"]),
    "box to a word": box(high=["much"]),
    "box without bounds": box(low=[], high=[]),
    "box of too many bounds": box(low=[0, 0, 0]),
    "box beyond its type": box(high=[1e300]),
    "box of 100 axes": box(shape=[1] * 100),
    "discrete of -1": {"type": "Discrete", "n": -1, "start": 0, "dtype": "int64"},
    "discrete of 0": {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
    "discrete of true": {"type": "Discrete", "n": True, "start": 0, "dtype": "int64"},
    "discrete of 2.5": {"type": "Discrete", "n": 2.5, "start": 0, "dtype": "int64"},
    "discrete of a text": {"type": "Discrete", "n": "2", "start": 0, "dtype": "int64"},
    "discrete floats": {"type": "Discrete", "n": 2, "start": 0, "dtype": "float32"},
    "discrete far away": {"type": "Discrete", "n": 2, "start": 10**40, "dtype": "int64"},
    "multidiscrete of 0": {"type": "MultiDiscrete", "nvec": [2, 0], "start": [0, 0], "dtype": "int64"},
    "multidiscrete of null": {"type": "MultiDiscrete", "nvec": None, "start": [0], "dtype": "int64"},
    "multidiscrete, ragged": {"type": "MultiDiscrete", "nvec": [[2], [2, 2]], "start": [0], "dtype": "int64"},
    "multibinary of -1": {"type": "MultiBinary", "n": -1},
    "multibinary of null": {"type": "MultiBinary", "n": None},
    "empty dict": {"type": "Dict", "spaces": []},
    "dict of nonsense": {"type": "Dict", "spaces": [1]},
    "dict with a list as a key": {"type": "Dict", "spaces": [[["x"], box()]]},
    "empty tuple": {"type": "Tuple", "spaces": []},
    "tuple of null": {"type": "Tuple", "spaces": None},
    "another box": box(shape=[5]),
}
"""Spaces that are none, or not those of the networks."""

BOMBS = {
    "box of 10**12": box(shape=[10**6, 10**6]),
    "box of 10**10": box(shape=[10**5, 10**5]),
    "box of 2**26": box(shape=[2**26], dtype="float64"),
    "box of 0 times 10**15": box(shape=[0, 10**15]),
    "many boxes": {"type": "Tuple", "spaces": [box(shape=[2**23], dtype="float64")] * 100},
    "the largest box": box(shape=[2**24], dtype="float64"),
    "discrete of 10**15": {"type": "Discrete", "n": 10**15, "start": 0, "dtype": "int64"},
    "discrete of 10**10": {"type": "Discrete", "n": 10**10, "start": 0, "dtype": "int64"},
    "multidiscrete of 10**12": {"type": "MultiDiscrete", "nvec": [10**12] * 2, "start": [0, 0], "dtype": "int64"},
    "multidiscrete of 10**5 parts": dict(type="MultiDiscrete", nvec=[2] * 10**5, start=[0] * 10**5, dtype="int64"),
    "multibinary of 10**12": {"type": "MultiBinary", "n": 10**12},
    "multibinary of 10**12, flat": {"type": "MultiBinary", "n": [10**6, 10**6]},
    "40,000 spaces": {"type": "Tuple", "spaces": [box()] * 40_000},
    "dict 300 deep": nested(300),
    "tuple 300 deep": nested(300, "Tuple"),
}
"""Spaces that would take all memory or time; in a process of their own."""

SETTINGS_BOMBS = {
    "layers of 10**9": {"network": {"hidden_sizes": [10**9, 10**9]}},
    "layers of 10**30": {"network": {"hidden_sizes": [10**30]}},
    "10**5 layers": {"network": {"hidden_sizes": [1] * 10**5}},
    "layers of 10**9 in one torso": {
        "network": {"hidden_sizes": [10**9, 10**9], "torso": "shared", "layer_norm": True}
    },
    "10**18 environments": {"env": {"num_envs": 10**18 + 1}, "ppo": {"minibatch_size": 7}},
}

CONFIGS: dict[str, Any] = {
    "a list": [],
    "null": None,
    "a text": "ppo",
    "an unknown key": {"ppo": {"teapot": 1}},
    "an unknown section": {"teapots": {"gamma": 1}},
    "an unknown key on two lines": {"ppo\n\n\x1b[2J": 1},
    "a very long key": {"x" * 100_000: 1},
    "a negative layer": {"network": {"hidden_sizes": [-8]}},
    "no list of layers": {"network": {"hidden_sizes": 8}},
    "layers of null": {"network": {"hidden_sizes": [None]}},
    "layers of NaN": {"network": {"hidden_sizes": [float("nan")]}},
    "another layer": {"network": {"hidden_sizes": [9]}},
    "an unknown activation": {"network": {"activation": "os.system"}},
    "an unknown CNN": {"network": {"cnn": "os.system"}},
    "an embedding of nothing": {"network": {"embed": 0}},
    "another torso": {"network": {"torso": "shared"}},
    "another layer's norm": {"network": {"layer_norm": True}},
    "a stack of 10**9": {"env": {"frame_stack": 10**9}},
    "gamma of 2": {"ppo": {"gamma": 2}},
    "gamma of infinity": {"ppo": {"gamma": float("inf")}},
    "a seed of 10**400": {"seed": 10**400},
    "a number as id": {"env": {"id": 5}},
    "sizes that do not divide": {"ppo": {"minibatch_size": 7}},
    "statistics that are not there": {"normalize": {"observations": True}},
}

DAMAGED_ARRAYS = {
    "a tensor renamed": renamed("params/actor/Dense_0/kernel", "params/actor/Dense_9/kernel"),
    "a tensor renamed to two lines": renamed("params/actor/Dense_0/kernel", "a\nb\x1b[2J" + "c" * 10_000),
    "a tensor missing": renamed("params/actor/Dense_0/bias", None),
    "a tensor too many": extra("params/actor/Dense_9/kernel"),
    "a tensor without a name": extra(""),
    "a tensor outside": extra("../../etc/passwd"),
    "a kernel transposed": tensor("params/actor/Dense_0/kernel", np.transpose),
    "a kernel flat": tensor("params/actor/Dense_0/kernel", np.ravel),
    "a kernel with an axis too many": tensor("params/actor/Dense_0/kernel", lambda array: array[None]),
    "a kernel without rows": tensor("params/actor/Dense_0/kernel", lambda array: array[:0]),
    "a scalar for a kernel": tensor("params/actor/Dense_0/kernel", lambda array: np.float32(1)),
    "doubles": tensor("params/actor/Dense_0/kernel", lambda array: array.astype(np.float64)),
    "halves": tensor("params/actor/Dense_0/bias", lambda array: array.astype(np.float16)),
    "whole numbers": tensor("params/actor/Dense_0/bias", lambda array: array.astype(np.int32)),
    "truths": tensor("params/actor/Dense_0/bias", lambda array: array.astype(bool)),
    "no tensors": lambda held, meta: held.clear(),
}

NETWORKS = {
    "unknown": ["actor", "teapot"],
    "none": [],
    "twice": ["actor", "actor"],
    "missing": ["actor", "critic"],
    "a text": "actor",
    "a number": 1,
    "nested": [["actor"]],
    "null": None,
}

FORGED_POLICIES = {
    **DAMAGED_ARRAYS,
    **{f"without {key}": put(key, GONE) for key in ("networks", "observation_space", "action_space", "config")},
    **{f"networks: {name}": put("networks", value) for name, value in NETWORKS.items()},
    **{f"networks of its own: {value}": put("own_network", value) for value in (True, "yes", [1])},
    **{f"settings: {name}": put("config", value) for name, value in CONFIGS.items()},
    **{f"observation space: {name}": put("observation_space", value) for name, value in SPACES.items()},
    **{f"action space: {name}": put("action_space", value) for name, value in SPACES.items()},
}

WRONG_NUMBERS: dict[str, list[Any]] = {
    "updates": ["1", None, -1, 1.5, True, [], 10**30, float("nan")],
    "steps": ["16", -16, None, float("inf")],
    "episodes": [-1, {}],
    "skipped": [None, -2],
    "skipped_in_a_row": ["0", 0.5],
    "best_step": [None, -1],
    "best_score": ["high", [], True],
    "best_average": ["high", {}],
    "streak": [-1, None],
    "claim": ["high", True],
    "unconfirmed": [-1, None, 0.5],
    "final_eval": [{}, [], "good", {"return_mean": 1.0}, dict.fromkeys(counters.PLAYED, 1.0) | {"episodes": "3"}],
    "converged": [0, None, "no"],
    "goal_counts": [1, "yes"],
    "training_seconds": [-1.0, float("nan"), None, "1"],
    "elapsed_seconds": [float("inf"), -0.5, []],
    "wall_seconds": [float("nan"), None, 10**400],
    "resumed": [None, {}, [1], [{}], [{"step": 1}], [{"step": "1", "exact": True}], [{"step": 1, "exact": 1}]],
    "unfinished": [{}, [], "row", {"update": 1}, {"update": 1, "step": 16, "episode": 0}],
}

NO_AGENTS: list[Any] = [None, [], "PPO", {}]
NO_HISTORY: list[Any] = [None, [], "long"]
NO_COUNT: list[Any] = [1, -1, 10**12, True, "0", [], 0.0]

FORGED_CHECKPOINTS = {
    **{name: change for name, change in DAMAGED_ARRAYS.items() if name != "a tensor renamed"},
    **{f"without {key}": put(key, GONE) for key in ("config", "agents", "by_id", "history", "envs")},
    **{f"without history/{key}": put(f"history/{key}", GONE) for key in WRONG_NUMBERS},
    **{
        f"{key} of {str(value)[:20]!r}": put(f"history/{key}", value)
        for key, values in WRONG_NUMBERS.items()
        for value in values
    },
    **{f"settings: {name}": put("config", value) for name, value in CONFIGS.items() if "another" not in name},
    **{f"agents: {value}": put("agents", value) for value in NO_AGENTS},
    **{f"agents by group: {value}": put("agents/agent", value) for value in (None, [], "PPO", {}, GONE)},
    **{
        f"agent's networks: {name}": put("agents/agent/networks", value)
        for name, value in NETWORKS.items()
        if name != "missing"
    },
    "agent's space": put("agents/agent/observation_space", SPACES["another box"]),
    **{f"by id: {value}": put("by_id", value) for value in (None, 1, "yes")},
    **{f"history: {value}": put("history", value) for value in NO_HISTORY},
    **{f"envs: {value}": put("envs", value) for value in NO_COUNT},
    "an environment too many": extra("env/0"),
    "two nobody counts": lambda held, meta: held.update({f"env/{i}": np.zeros(3, np.uint8) for i in range(2)}),
    "environments of floats": lambda held, meta: (
        meta.update(envs=2) or held.update({f"env/{i}": np.zeros(3) for i in range(2)})
    ),
    "one of another name": lambda held, meta: meta.update(envs=1) or held.update({"env/x": np.zeros(3, np.uint8)}),
    "a part of no kind": extra("teapot/x"),
    "more history": extra("history/teapot"),
    "recent returns missing": renamed("history/recent", None),
    "recent returns of 2 rows": tensor("history/recent", lambda array: array[:2]),
    "recent returns of no agent": tensor("history/recent", lambda array: array[:3]),
    "recent returns in single precision": tensor("history/recent", lambda array: array.astype(np.float32)),
    "recent returns of too many": tensor("history/recent", lambda array: np.zeros((4, 101))),
    "a window of two axes": tensor("history/window", lambda array: array[None]),
    "a window of whole numbers": tensor("history/window", lambda array: array.astype(np.int64)),
    "4 environments": put("config/env/num_envs", 4),
    "10**9 environments": put("config/env/num_envs", 10**9),
    "lengths of 3 episodes": tensor("runner/episode_length", lambda array: np.zeros(3, np.int32)),
}


def forged(whole: SimpleNamespace, kind: str, change: Change, path: Path) -> None:
    """Write what `change` makes of the whole file, with a checksum that is right."""
    held, meta = tensors.read(getattr(whole, kind), kind.removeprefix("host_"))
    held, meta = dict(held), copy.deepcopy(meta)
    change(held, meta)
    tensors.write(path, kind.removeprefix("host_"), held, meta)


FORMATS = {"policy": "proximo-policy-1", "checkpoint": "proximo-checkpoint-4"}


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_a_checkpoint_of_another_version_is_refused_in_a_sentence(
    version: int, whole: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, meta = tensors.read(whole.checkpoint, "checkpoint")
    monkeypatch.setattr(tensors, "VERSIONS", {"checkpoint": version})
    tensors.write(tmp_path / "old.safetensors", "checkpoint", held, meta)
    monkeypatch.undo()
    with pytest.raises(UserError) as caught:
        checkpoint.load(tmp_path / "old.safetensors")
    assert str(caught.value).endswith(
        f"it holds proximo-checkpoint-{version}, but proximo-checkpoint-4 is expected. "
        "Another version of Proximo wrote it."
    )


def forged_text(held: dict[str, np.ndarray], kind: str, text: str, path: Path) -> None:
    """As `tensors.write`, with a description that need not be one."""
    ordered = {name: held[name] for name in sorted(held)}
    header = f'{{"format": "{FORMATS[kind]}", "sha256": "{tensors.digest(ordered, text)}", "meta": {text}}}'
    path.write_bytes(safetensors.numpy.save(ordered, {"proximo": header}))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "changes"), [("policy", FORGED_POLICIES), ("checkpoint", FORGED_CHECKPOINTS)], ids=["policy", "checkpoint"]
)
def test_forgeries_are_refused(whole: SimpleNamespace, tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    cases = [
        (name, [kind], lambda path, change=change: forged(whole, kind, change, path))
        for name, change in changes.items()
    ]
    assert_refused(cases, tmp_path / "file.safetensors")


def deep(text: str, depth: int) -> str:
    return text[0] * depth + text[1] * depth


TEXTS = {
    "a list": "[]",
    "null": "null",
    "a number": "1",
    "a text": '"meta"',
    "10,000 lists": deep("[]", 10_000),
    "10**6 lists": deep("[]", 10**6),
    "10,000 dictionaries": '{"config": ' * 10_000 + "1" + "}" * 10_000,
    "settings of 10,000 lists": f'{{"config": {deep("[]", 10_000)}}}',
    "spaces 5,000 deep": '{"observation_space": '
    + '{"type": "Tuple", "spaces": [' * 5000
    + "]}" * 5000
    + ', "networks": ["actor"]}',
    "a number of 10,000 digits": f'{{"config": {"9" * 10_000}}}',
    "no JSON": "os.system('true')",
    "nothing": "",
    "the same key twice": '{"networks": ["actor"], "networks": ["actor"]}',
    "a lone surrogate": '{"networks": "\\ud800"}',
}
HEADERS = {
    "a list": "[]",
    "null": "null",
    "no format": "{}",
    "format of null": '{"format": null}',
    "format of a list": '{"format": ["proximo-policy-1"]}',
    "a later format": '{"format": "proximo-policy-2", "meta": {}}',
    "a format on two lines": json.dumps({"format": "a\nb\x1b[2J" + "c" * 10_000}),
    "no checksum": '{"format": "proximo-policy-1", "meta": {}}',
    "a checksum of null": '{"format": "proximo-policy-1", "sha256": null, "meta": {}}',
    "no description": '{"format": "proximo-policy-1", "sha256": ""}',
}


def test_descriptions_that_are_none_are_refused(whole: SimpleNamespace, tmp_path: Path) -> None:
    held = tensors.read(whole.policy, "policy")[0]
    cases: list[Case] = [
        (name, [kind], partial(forged_text, held, kind, text)) for name, text in TEXTS.items() for kind in LOADERS
    ]
    cases += [
        (name, LOADERS, partial(Path.write_bytes, data=safetensors.numpy.save(held, {"proximo": text})))
        for name, text in HEADERS.items()
    ]
    assert_refused(cases, tmp_path / "file.safetensors")


def test_large_claims_are_refused_without_large_memory(whole: SimpleNamespace, tmp_path: Path) -> None:
    files = []

    def new(name: str) -> Path:
        files.append(tmp_path / f"{name.replace('/', ' ')}.safetensors")
        return files[-1]

    for name, space in BOMBS.items():
        forged(whole, "policy", put("observation_space", space), new(f"policy that sees {name}"))
        forged(whole, "policy", put("action_space", space), new(f"policy that does {name}"))
        if name in ("box of 10**12", "many boxes", "discrete of 10**10", "dict 300 deep"):
            forged(whole, "checkpoint", put("agents/agent/observation_space", space), new(f"checkpoint, {name}"))
    for name, config in SETTINGS_BOMBS.items():
        forged(whole, "policy", put("config", config), new(f"policy of {name}"))
        forged(whole, "checkpoint", put("config", config), new(f"checkpoint of {name}"))
    for name, header in TENSOR_BOMBS.items():
        text = json.dumps(header).encode()
        new(f"policy with {name}").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    new("policy that is all header").write_bytes((2**40).to_bytes(8, "little") + b"{" * 100)
    for kind in LOADERS:
        os.mkfifo(new(f"pipe for a {kind}"))
        new(f"endless {kind}").symlink_to("/dev/zero")
        new(f"circular {kind}").symlink_to(files[-1])
        files.append(tmp_path / f"{kind}{'x' * 300}")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        unreadable = shutil.copy(whole.policy, Path(folder) / "policy")
        os.chmod(unreadable, 0)
        done = subprocess.run(
            [sys.executable, damaged.__file__, whole.policy, *files, unreadable],
            capture_output=True,
            text=True,
            timeout=120,
        )
    *bad, last = done.stdout.splitlines() or [""]
    assert not bad, done.stdout
    assert last.startswith("megabytes"), done.stderr
    assert int(last.split()[1]) < 1000


TENSOR_BOMBS = {
    "10**12 numbers": {"x": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}},
    "numbers it does not hold": {"x": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 8]}},
    "2**64 numbers": {"x": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
    "negative numbers": {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
    "offsets the wrong way round": {"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
    "no numbers, many times": {"x": {"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]}},
    "an unknown type": {"x": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}},
    "a type that NumPy lacks": {
        "__metadata__": {"proximo": '{"format": "proximo-policy-1"}'},
        "x": {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]},
    },
    "a type of half bytes": {
        "__metadata__": {"proximo": '{"format": "proximo-policy-1"}'},
        "x": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]},
    },
    "brain floats": {
        "__metadata__": {"proximo": '{"format": "proximo-policy-1"}'},
        "x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
    },
}


# Other files.


class Opens:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, marker: object, how: str) -> None:
        self.call = (os.system, (f"touch '{marker}'",)) if how == "system" else (open, (str(marker), "w"))

    def __reduce__(self) -> Any:
        return self.call


def zipped(path: Path, name: str, data: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)


def zip_bomb(path: Path) -> None:
    """A gigabyte of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("zeros", piece * 2**10 + packer.flush())
        archive.filelist[0].compress_type, archive.filelist[0].file_size = zipfile.ZIP_DEFLATED, 2**30


def foreign_files(whole: SimpleNamespace, folder: Path) -> dict[str, Callable[[Path], Any]]:
    """Writers of files of others; what loads them must not make `folder/marker`."""
    marker = folder / "marker"
    bombs = {how: pickle.dumps(Opens(marker, how)) for how in ("system", "open")}
    objects = np.array([Opens(marker, "open")], object)

    def policy_data() -> dict[str, np.ndarray]:
        return tensors.read(whole.policy, "policy")[0]

    return {
        "nothing": lambda path: path.write_bytes(b""),
        "text": lambda path: path.write_text("hello"),
        "YAML": lambda path: shutil.copy(whole.run / "config.yaml", path),
        "JSON": lambda path: shutil.copy(whole.run / "result.json", path),
        "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)),
        "a program": lambda path: path.write_bytes(b"\x7fELF" + bytes(100)),
        "a script": lambda path: path.write_text(f"#!/bin/sh\ntouch '{marker}'\n"),
        "a zip bomb": zip_bomb,
        "a pickle with a command": lambda path: path.write_bytes(bombs["system"]),
        "a pickle that opens": lambda path: path.write_bytes(bombs["open"]),
        "a pickle as torch has it": lambda path: zipped(path, "archive/data.pkl", bombs["open"]),
        "an array of objects": lambda path: np.save(path.open("wb"), objects, allow_pickle=True),
        "arrays of objects": lambda path: np.savez(path.open("wb"), x=objects),
        "an array": lambda path: np.save(path.open("wb"), np.zeros(3)),
        "tensors": lambda path: path.write_bytes(safetensors.numpy.save(policy_data())),
        "tensors of torch": lambda path: path.write_bytes(safetensors.numpy.save(policy_data(), {"format": "pt"})),
        "a pickle as a description": lambda path: path.write_bytes(
            safetensors.numpy.save(policy_data(), {"proximo": bombs["open"].decode("latin-1")})
        ),
    }


NUM_FOREIGN = 17 + 2 + 3


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_other_files_are_refused_and_nothing_in_them_is_run(whole: SimpleNamespace, tmp_path: Path) -> None:
    cases: list[Case] = [(name, LOADERS, write) for name, write in foreign_files(whole, tmp_path).items()]
    cases.append(("a policy", ["checkpoint"], lambda path: shutil.copy(whole.policy, path)))
    cases.append(("a checkpoint", ["policy"], lambda path: shutil.copy(whole.checkpoint, path)))
    path = tmp_path / "file"

    def folder_instead(path: Path) -> None:
        path.unlink()
        path.mkdir()

    cases.append(("no file", LOADERS, lambda path: path.unlink()))
    cases.append(("a link to nowhere", LOADERS, lambda path: path.symlink_to("nowhere")))
    cases.append(("a folder", LOADERS, folder_instead))
    assert len(cases) == NUM_FOREIGN
    assert_refused(cases, path)
    assert not (tmp_path / "marker").exists()
    pickle.loads(pickle.dumps(Opens(tmp_path / "marker", "open"))).close()
    assert (tmp_path / "marker").exists()  # so those were sharp


# Resuming: what shows only when the program is there.


def half_run(folder: Path, path: Path) -> tuple[Any, Any]:
    shutil.copytree(folder, path)
    return path, checkpoint.newest(path)


RESUMED = {
    "a counter renamed": renamed("program/train/update", "program/train/teapot"),
    "keys of another shape": tensor("program/train/keys/env", lambda array: np.zeros((7, 7), np.uint32)),
    "lanes of another length": tensor("lanes/agent/discounted", lambda array: np.zeros(3, np.float32)),
    "moments of another type": tensor("/mu/", lambda array: array.astype(np.float16)),
    "more updates than rows": put("history/updates", 5),
}


@pytest.mark.parametrize("name", RESUMED)
def test_resuming_refuses_a_state_that_does_not_fit(whole: SimpleNamespace, tmp_path: Path, name: str) -> None:
    run, file = half_run(whole.half, tmp_path / "run")
    forged(whole, "checkpoint", RESUMED[name], file)
    with pytest.raises(UserError) as caught:
        PPOTrainer.resume(run).train()
    assert str(caught.value).isprintable()
    assert not (run / "result.json").exists()


def random_envs(data: bytes) -> bytes:
    return random.Random(0).randbytes(len(data))


def cut_envs(data: bytes) -> bytes:
    return data[:-1]


def pickled_envs(data: bytes) -> bytes:
    return pickle.dumps(Opens("marker", "system"))


def changed(data: bytes, **parts: Any) -> bytes:
    return encode(decode(data) | parts)


def endless_envs(data: bytes) -> bytes:
    return changed(data, length=10**30)


def negative_envs(data: bytes) -> bytes:
    return changed(data, total=-5)


def hooked_envs(data: bytes) -> bytes:
    return changed(data, replay=None, hook=pickle.dumps(Opens("marker", "system")))


def replayed_envs(data: bytes) -> bytes:
    seeds = decode(data)["replay"][:3]
    return changed(data, replay=[*seeds, bytes(8 * 10_000), 1.0])


def counted_envs(data: bytes) -> bytes:
    return changed(data, restarts=3)


FORGED_ENVS = [random_envs, cut_envs, pickled_envs, endless_envs, negative_envs, hooked_envs, replayed_envs]
OTHER_COUNTS = [counted_envs]  # of which nobody can know that they are wrong


@pytest.mark.parametrize("forge", FORGED_ENVS + OTHER_COUNTS)
def test_resuming_with_forged_environments_runs_nothing(
    whole: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forge: Callable[[bytes], bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, file = half_run(whole.host_half, tmp_path / "run")

    def change(held: dict[str, np.ndarray], meta: Any) -> None:
        for env in range(2):
            held[f"env/{env}"] = np.frombuffer(forge(held[f"env/{env}"].tobytes()), np.uint8)

    forged(whole, "host_checkpoint", change, file)
    notes = probes.Notes()
    result = PPOTrainer.resume(run, console=notes).train()
    assert result["resumed"] == [{"step": 16, "exact": forge in OTHER_COUNTS}]
    assert result["total_steps"] == 32
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# The command line.


def spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) - 3, 2))


def assert_one_sentence(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert "checksum is wrong" in done.stderr


def test_commands_say_what_is_damaged(whole: SimpleNamespace, tmp_path: Path, proximo: Callable[..., Any]) -> None:
    run = shutil.copytree(whole.run, tmp_path / "run")
    spoil(run / "models" / "final_actor.safetensors")
    assert_one_sentence(proximo("evaluate", run))
    half, file = half_run(whole.half, tmp_path / "half")
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file() and path != file}
    spoil(file)
    for step in checkpoint.steps(half)[:-1]:
        file.with_name(f"{checkpoint.step_name(step)}.safetensors").unlink()
    assert_one_sentence(proximo("resume", half))
    assert all(path.read_bytes() == data for path, data in before.items() if path.parent.name != "checkpoints")


def test_resume_goes_on_from_the_checkpoint_before(
    whole: SimpleNamespace, tmp_path: Path, proximo: Callable[..., Any]
) -> None:
    run = shutil.copytree(whole.run, tmp_path / "run")
    spoil(checkpoint.newest(run))
    done = proximo("resume", run)
    assert done.returncode == 0, done.stderr
    assert "checksum is wrong" in done.stdout + done.stderr
    assert "The one before is used." in done.stdout + done.stderr
    result = json.loads((run / "result.json").read_text())
    assert result["resumed"] == [{"step": 16, "exact": True}]


def test_there_are_many_cases() -> None:
    bombs = 2 * len(BOMBS) + 2 * len(SETTINGS_BOMBS) + len(TENSOR_BOMBS)
    forgeries = len(FORGED_POLICIES) + len(FORGED_CHECKPOINTS) + 2 * len(TEXTS) + len(HEADERS) + len(RESUMED)
    assert 3 * NUM_DAMAGES + forgeries + bombs + NUM_FOREIGN >= 200
    assert forgeries >= 200
