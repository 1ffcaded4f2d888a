"""The layout's rules, read from the source: who may import whom, and who may import which library."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

import proximo
from proximo.envs import FAMILIES

ROOT = Path(proximo.__file__).parent

# What each package of Proximo, or module where one has a row of its own, may import of Proximo. A package may import
# its own modules.
ALLOWED = {
    "_version": "",
    "compile": "program_cache",
    "credentials": "",
    "errors": "",
    "hints": "",
    "host_seeds": "",
    "metric_names": "",
    "processes": "",
    "program_cache": "run_dir.files",
    "spaces": "types",
    "types": "",
    "run_dir.files": "",
    "presets": "config errors settings",
    "packing": "types",
    "shards": "compile errors packing seeding types",
    "seeding": "errors host_seeds types",
    "config": "errors metric_names",
    "yaml_file": "errors run_dir.files",
    "settings": "config credentials errors hints seeding yaml_file",
    "run_dir": "_version config errors settings types yaml_file",
    "display": "config credentials errors run_dir settings",
    "tracking": "_version config credentials errors metric_names presets processes run_dir settings",
    "plots": "config display run_dir",
    "plots.charts": "plots experiment.outcomes experiment.statistics experiment.summarize",
    # The way of an observation, from left to right: envs < policy < rollout < ppo < multi_agent < train.
    "envs": "compile config errors host_seeds processes seeding spaces types",
    "policy": "compile _version config errors hints run_dir seeding settings shards spaces types envs",  # envs: groups
    "rollout": "compile config errors packing run_dir seeding spaces envs policy types",
    "ppo": "config errors seeding shards spaces policy rollout types",
    "multi_agent": "compile config errors hints run_dir spaces envs policy rollout ppo types",
    "train": "compile config display errors hints metric_names packing plots presets processes run_dir seeding "
    "settings shards spaces tracking envs policy rollout ppo multi_agent types",
    "pyfunc": "policy",
    "fleet": "compile config display envs errors ppo processes run_dir settings train yaml_file",
    "experiment": "_version compile config credentials display errors metric_names plots presets processes run_dir "
    "seeding settings shards spaces yaml_file envs policy rollout ppo multi_agent tracking train types fleet",
    "tuning": "compile config credentials display errors experiment fleet plots presets run_dir settings spaces "
    "yaml_file envs ppo train",
}
UNRESTRICTED = {"cli", "__init__", "__main__"}

# The only file that may import a library.
OWNER = {
    "mlflow": "tracking/mlflow.py",
    "optuna": "tuning/study.py",
    "typer": "cli",
    "gymnax": "envs/compiled/gymnax.py",
    "pettingzoo": "envs/host/",
    "ray": "fleet/cluster.py",
}


class Import(NamedTuple):
    file: str
    line: int
    name: str
    """The full dotted name; `from a import b` gives `a.b`."""
    in_function: bool

    @property
    def module(self) -> str:
        """The module of Proximo that imports, without `proximo.`."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def row(self) -> str:
        """What the module that imports is called in ALLOWED: by its own name, or its package's."""
        return self.module if self.module in ALLOWED else self.top

    def of(self, *names: str) -> bool:
        return any(f"{self.name}.".startswith(f"{name}.") for name in names)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"


def find_imports(source: str, file: str) -> list[Import]:
    package = ".".join(["proximo", *Path(file).parts[:-1]])

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from (Import(file, node.lineno, f"{module}.{alias.name}", in_function) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function)

    return list(visit(ast.parse(source), False))


FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@cache
def imports() -> list[Import]:
    """Of all files; when a test asks for them, since every process of the tests loads this module."""
    return [found for file in FILES for found in find_imports((ROOT / file).read_text(encoding="utf-8"), file)]


def listed(wrong: Iterable[Import]) -> str:
    return "\n".join(map(str, wrong))


def test_the_reader_sees_every_form_of_import() -> None:
    source = (
        "import a.b as c\nfrom flax import linen\ndef f():\n    from . import api\n    from ..errors import UserError"
    )
    assert find_imports(source, "envs/made_up.py") == [
        ("envs/made_up.py", 1, "a.b", False),
        ("envs/made_up.py", 2, "flax.linen", False),
        ("envs/made_up.py", 4, "proximo.envs.api", True),
        ("envs/made_up.py", 5, "proximo.errors.UserError", True),
    ]
    assert len(imports()) > 50


def test_every_module_has_its_row() -> None:
    missing = {file.partition("/")[0].removesuffix(".py") for file in FILES} - set(ALLOWED) - UNRESTRICTED
    assert not missing, f"add {', '.join(sorted(missing))} to ALLOWED in tests/test_imports.py, with what it may import"


@pytest.mark.parametrize("module", ALLOWED)
def test_modules_import_only_leftward(module: str) -> None:
    allowed = [module, *ALLOWED[module].split()]
    names = [f"proximo.{name}" for name in allowed]
    wrong = [found for found in imports() if found.row == module and found.of("proximo") and not found.of(*names)]
    assert not wrong, f"{module} may import only {', '.join(sorted(allowed))}:\n{listed(wrong)}"


def test_no_module_is_imported_by_what_it_imports() -> None:
    """Whatever the rows allow, and also where an import waits inside a function."""
    modules = {found.module for found in imports()}
    named = [(found.module, found.name.removeprefix("proximo.")) for found in imports() if found.of("proximo")]
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, name in named:
        graph[module] |= {target for target in (name, name.rpartition(".")[0]) if target in modules - {module}}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("library", OWNER)
def test_only_one_file_imports_the_library(library: str) -> None:
    wrong = [found for found in imports() if found.of(library) and not found.file.startswith(OWNER[library])]
    assert not wrong, f"only {OWNER[library]} may import {library}:\n{listed(wrong)}"


def test_environments_know_no_networks_and_no_optimizers() -> None:
    wrong = [found for found in imports() if found.top == "envs" and found.of("flax.linen", "flax.nnx", "optax")]
    assert not wrong, listed(wrong)


def test_policies_know_of_environments_only_who_shares_one() -> None:
    wrong = [
        found
        for found in imports()
        if found.top == "policy" and found.of("proximo.envs") and not found.of("proximo.envs.groups")
    ]
    assert not wrong, listed(wrong)


def test_matplotlib_is_imported_inside_functions() -> None:
    wrong = [found for found in imports() if found.of("matplotlib", "mpl_toolkits") and not found.in_function]
    assert not wrong, listed(wrong)


def test_adapters_are_only_reached_through_their_family() -> None:
    wrong = [found for found in imports() if found.of(*(family.adapter for family in FAMILIES.values()))]
    assert not wrong, f"ask proximo.envs.make instead:\n{listed(wrong)}"


def test_importing_environments_and_settings_loads_no_family_and_no_tracking() -> None:
    heavy = ["gymnax", "mlflow", "matplotlib", "typer"]
    code = f"import sys, proximo.envs, proximo.settings; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


LOOK = """
import builtins, contextlib, importlib, os, signal, sys, warnings
import jax

def seen():
    mask = os.umask(0)
    os.umask(mask)
    return {
        "jax.config": dict(jax.config.values),
        "umask": mask,
        "print": builtins.print,
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warnings": list(warnings.filters),
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "started": jax._src.xla_bridge.backends_are_initialized(),
    }

foreign, ours = (names.split() for names in sys.argv[1:])
for name in foreign:  # what these change is theirs
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for name in ours:
    before = seen()
    importlib.import_module(name)
    for what, value in seen().items():
        assert value == before[what], f"importing {name} changes {what}"
"""


def test_importing_a_module_changes_nothing_outside_it() -> None:
    """Options of JAX, the mask of permissions, `print`, signals, warnings, the environment; nor is JAX started."""
    foreign = sorted({found.name.rpartition(".")[0] or found.name for found in imports() if not found.of("proximo")})
    modules = (file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in FILES)
    ours = [f"proximo.{name}" for name in modules if name not in ("__init__", "__main__")]
    given = [sys.executable, "-c", LOOK, " ".join(foreign), " ".join(ours)]
    done = subprocess.run(given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
