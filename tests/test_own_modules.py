"""Modules that are not installed, packages that are and that nobody imported, and what `proximo envs` says of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from proximo import envs, run_multiple_experiments
from proximo.envs import installed
from proximo.errors import EnvError, UserError

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from mine_helpers import LIMIT


class Mine(CartPoleEnv):
    pass


class Shortened(gymnasium.wrappers.TimeLimit):
    pass


gymnasium.register("Mine-v0", entry_point="mine_envs:Mine", max_episode_steps=LIMIT)
"""
SMALL = ["--set", "env.num_envs=2", "--set", "ppo.rollout_length=8", "--set", "ppo.minibatch_size=8", "--steps", "16"]
SMALL += ["--set", "eval.episodes=2", "--set", "eval.frequency=0", "--set", "ppo.epochs_per_update=1"]
FAKE = "def register_fake(): ...\nimport gymnasium\ngymnasium.register(id='fake/Highway-v0', entry_point='x:Y')\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module of environments, and one that it needs."""
    (tmp_path / "mine_envs.py").write_text(MODULE)
    (tmp_path / "mine_helpers.py").write_text("LIMIT = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield tmp_path
    gymnasium.registry.pop("Mine-v0", None)
    for name in ("mine_envs", "mine_helpers"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_module_in_the_current_folder_is_trained_on(proximo: Callable[..., Any], home: Path, workers: int) -> None:
    more = ["--set", "env.wrappers=[{name: mine_envs.Shortened, max_episode_steps: 3}]"]
    more += ["--set", f"env.workers={workers}"]
    done = proximo("train", "mine_envs:Mine-v0", *SMALL, *more, "--out", "run", cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "run" / "result.json").read_text())["final_eval"]["length_mean"] == 3
    done = proximo("evaluate", "run", "--episodes", "2", "--json", cwd=home)
    assert json.loads(done.stdout)["length_mean"] == 3
    done = proximo("resume", "run", "--steps", "16", cwd=home)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_processes_of_an_experiment_find_it_too(home: Path) -> None:
    keywords: dict[str, Any] = {"rollout_length": 8, "num_envs": 2, "minibatch_size": 8, "eval_episodes": 2}
    keywords |= {"epochs_per_update": 1, "total_timesteps": 16, "out": home / "out", "seeds": 1}
    summary = run_multiple_experiments("mine_envs:Mine-v0", **keywords)
    assert [run["state"] for run in summary["runs"]] == ["complete"]


def test_the_current_folder_stands_in_for_nothing(home: Path) -> None:
    """It is looked at for what is named and is nowhere else, and comes last."""
    (home / "gymnax.py").write_text("raise SystemExit('imported')")
    before = list(sys.path)
    envs.make("gymnax/CartPole-v1")
    envs.make("CartPole-v1", None, ["gymnasium.wrappers:FlattenObservation"])
    assert sys.path == before
    assert envs.make("mine_envs:Mine-v0").spec.max_steps == 5
    assert sys.path == [*before, str(home)]
    envs.make("mine_envs:Mine-v0", None, [{"name": "mine_envs:Shortened", "max_episode_steps": 3}])
    assert sys.path == [*before, str(home)]


def test_what_is_not_there_is_said(home: Path) -> None:
    with pytest.raises(UserError, match="there is no module nowhere, neither installed, nor in PYTHONPATH, nor in the"):
        envs.make("nowhere:Mine-v0")
    with pytest.raises(UserError, match="mine_envs registers no environment Mime-v0; did you mean mine_envs:Mine-v0"):
        envs.make("mine_envs:Mime-v0")
    (home / "mine_helpers.py").write_text("import not_there\n")
    sys.modules.pop("mine_helpers")
    sys.modules.pop("mine_envs")
    with pytest.raises(UserError, match="No module named 'not_there'"):
        envs.make("mine_envs:Mine-v0")
    (home / "mine_helpers.py").write_text("1 / 0\n")
    sys.modules.pop("mine_helpers", None)
    with pytest.raises(EnvError, match="ZeroDivisionError") as failed:
        envs.make("mine_envs:Mine-v0")
    assert "mine_helpers" in failed.value.trace


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two packages, as pip would install them: one says by an entry point that it registers, one needs Gymnasium."""
    about = {
        "declared": ("Requires-Dist: numpy\n", "[gymnasium.envs]\n__root__ = declared_envs.all:register_fake\n"),
        "needing": ("Requires-Dist: gymnasium (>=1.0)\n", ""),
        "other": ("Requires-Dist: gymnasium-robotics\nRequires-Dist: numpy\n", ""),
    }
    for name, (needs, entries) in about.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\nRequires-Dist: gymnasium\n"
        )
        (info / "top_level.txt").write_text(f"{name}_envs\n")
        (info / "entry_points.txt").write_text(entries)
        package = tmp_path / f"{name}_envs"
        package.mkdir()
        (package / "__init__.py").write_text(FAKE.replace("fake", name) + "raise SystemExit('imported')")
        (package / "far.py").write_text(f"for name in ['Far{name}-v3']: register(name)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.plugins.cache_clear()
    yield
    installed.plugins.cache_clear()


@pytest.mark.usefixtures("packages")
def test_an_id_of_a_package_that_is_not_imported_gets_a_hint(proximo: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"declared_envs\.all:declared/Highway-v0 does both"):
        envs.make("declared/Highway-v0")
    with pytest.raises(UserError, match="needing_envs:Farneeding-v3 does both"):
        envs.make("Farneeding-v3")
    with pytest.raises(UserError, match=r"no environment Farother-v3; "):
        envs.make("Farother-v3")
    said = proximo("envs").stdout
    assert "declared_envs.all  a package that registers with Gymnasium" in said
    assert "  needing_envs:needing/Highway-v0\n" in said
    assert "other" not in said
    said = proximo("envs", "needing").stdout
    assert said.count("needing_envs:needing/Highway-v0") == 1


@pytest.fixture
def strange(packages: None, tmp_path: Path) -> None:
    """In a package that needs Gymnasium: two subpackages that register, of which it imports one."""
    package = tmp_path / "needing_envs"
    texts = {
        "near": "register(id=f'Grid{size}{kind}-v3')",
        "far_off": "register('Doom-v1')\nregister(id='Unversioned')",
    }
    for name, text in texts.items():
        (package / name).mkdir()
        (package / name / "__init__.py").write_text(f"from gymnasium import register\n{text}\n")
    (package / "__init__.py").write_text("import needing_envs.near\n")


@pytest.mark.usefixtures("strange")
def test_the_module_that_registers_is_named() -> None:
    assert {module: ids for module, ids in installed.plugins().items() if module.startswith("needing")} == {
        "needing_envs": ["Grid…-v3"],
        "needing_envs.far_off": ["Doom-v1", "Unversioned"],
    }
    with pytest.raises(UserError, match=r"needing_envs\.far_off:Unversioned does both"):
        envs.make("Unversioned")
    for near, module in (("Grid8x8Easy-v3", "needing_envs"), ("Doom-v0", r"needing_envs\.far_off")):
        with pytest.raises(UserError, match=f"{module} is installed and has ids like it: try {module}:{near}"):
            envs.make(near)
    with pytest.raises(UserError, match=r"did you mean needing_envs:Grid8x8-v3\?"):
        envs.make("needing_envs/Grid8x8-v3")
    with pytest.raises(UserError, match=r"did you mean needing_envs:Grid8x8-v3\?"):
        envs.make("needing-envs:Grid8x8-v3")
    with pytest.raises(UserError, match=r"no environment CartPole-v9; did you mean CartPole-v1\?"):
        envs.make("CartPole-v9")


@pytest.mark.usefixtures("packages")
def test_a_package_that_is_named_is_imported_for_its_ids(proximo: Callable[..., Any], tmp_path: Path) -> None:
    package = tmp_path / "needing_envs"
    (package / "__init__.py").write_text(
        "import gymnasium\nfor size in (4, 8):\n    gymnasium.register(f'Board{size}-v0', entry_point='x:Y')\n"
    )
    assert "  needing_envs:Board…-v0\n" in proximo("envs").stdout
    said = proximo("envs", "needing_envs").stdout
    assert said.splitlines()[1:] == ["  needing_envs:Board4-v0", "  needing_envs:Board8-v0"]
    with pytest.raises(UserError, match=r"registers no environment Board5-v0; did you mean needing_envs:Board"):
        envs.make("needing_envs:Board5-v0")
    (package / "__init__.py").write_text("from gymnasium import register\nregister = 1 / 0\n# register(\n")
    sys.modules.pop("needing_envs")
    assert "needing_envs cannot be imported: ZeroDivisionError" in proximo("envs", "needing_envs").stderr
    for size in (4, 8):
        gymnasium.registry.pop(f"Board{size}-v0")


def test_an_environment_that_needs_arguments_says_which(home: Path) -> None:
    (home / "mine_envs.py").write_text(MODULE.replace("    pass", "    def __init__(self, table): ...", 1))
    with pytest.raises(UserError, match=r"cannot be made without arguments: .*'table'.*--env-arg.*a factory in Python"):
        envs.make("mine_envs:Mine-v0")


def test_the_list_of_families_imports_none_of_them() -> None:
    heavy = ["jax", "gymnasium", "gymnax", "jumanji", "brax", "jaxmarl", "envpool", "pettingzoo", "numpy"]
    code = "import sys; from proximo.cli import app; app(['envs'], standalone_mode=False); "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "gymnax/CartPole-v1  preset" in done.stdout


def test_a_factory_whose_id_nobody_registered_is_told_so() -> None:
    with pytest.raises(UserError, match=r"^The environment cannot be made: NameNotFound: .*NoSuch.* has to import the"):
        envs.make(lambda: gymnasium.make("NoSuch-v0"))
