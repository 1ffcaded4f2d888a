"""Tests run with what production code must not rely on switched off, and with shapes checked."""

from __future__ import annotations

import ctypes
import gc
import os
import pkgutil
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

# What Python compiles is kept, also by what tests start: each of their processes loads hundreds of modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Where a user's own key and own presets are kept; also for the commands that tests start.
os.environ["XDG_STATE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "state")
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "config")
os.environ["PROXIMO_MLFLOW"] = "0"  # tests/test_mlflow.py turns it on where it is tested
# Compiled programs are kept from one test, and one run of the tests, to the next; also for the commands they start.
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most tests compile for longer than they run, so they compile quickly what then runs slowly; also in what they start.
# `make test-learning` trains for long, and compiles as Proximo does.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import _import_hook, install_import_hook  # noqa: E402

import typechecker  # noqa: E402

hypothesis.settings.register_profile("proximo", deadline=None)  # two busy cores: how long an example takes says nothing
hypothesis.settings.load_profile("proximo")
jax.config.update("jax_num_cpu_devices", 3)  # for tests/test_shards.py; everything else runs on the first
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Shapes and types of every function and dataclass: `[B]` against `[B, 1]` is the classic silent bug.
# Not of the settings: what they may be is said by `proximo.settings`, in words, and in a program they are traced.
PACKAGE = Path(__file__).parent.parent / "src" / "proximo"
NAMES = [module.name for module in pkgutil.iter_modules([str(PACKAGE)]) if module.name != "config"]
install_import_hook([f"proximo.{name}" for name in NAMES], "typechecker.check")
vars(jaxtyping)["jaxtyped"] = typechecker.quickly_jaxtyped  # by this name it stands in front of every function

# While one of our modules is loaded, jaxtyping looks for files of every module under the names of what it has compiled
# itself, and finds none of the libraries'.
HOOK: Any = _import_hook
COMPILED_FILE = HOOK._optimized_cache_from_source


def compiled_file(kind: str, path: str, debug_override: bool | None = None) -> Any:
    if str(path).startswith(str(PACKAGE)):
        return COMPILED_FILE(kind, path, debug_override)
    return HOOK.cache_from_source(path, debug_override)


HOOK._optimized_cache_from_source = compiled_file

import proximo.cli  # noqa: E402
import proximo.compile  # noqa: E402
import proximo.envs.compiled.gymnax  # noqa: E402  (before a test imports gymnax, which loads seaborn for it)
import proximo.run_dir.files  # noqa: E402
import proximo.train.finish  # noqa: E402

MUCH_MEMORY, TOO_MUCH_MEMORY = 1.6 * 2**30, 1.9 * 2**30
MEMORY: list[float] = []


# Drawing hundreds of runs would take longer than training them; what is about pictures is marked so. Not drawn either
# by the processes that tests start: `started/sitecustomize.py`.
STARTED = str(Path(__file__).parent / "started")
GIVEN = os.environ.get("PYTHONPATH", "").split(os.pathsep)
WRITE_PLOTS = proximo.train.finish.write_plots
PLACES = os.pathsep.join(place for place in GIVEN if place not in ("", STARTED))  # a process of `-n` has it already
proximo.train.finish.write_plots = lambda *_: []
os.environ["PYTHONPATH"] = os.pathsep.join([STARTED, *filter(None, [PLACES])])
sys.path.append(STARTED)  # which the processes of experiments are given


@contextmanager
def drawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proximo.train.finish.write_plots", WRITE_PLOTS)
        patch.setenv("PYTHONPATH", PLACES)
        yield


@pytest.fixture(autouse=True, scope="module")
def pictures_of_a_module(request: pytest.FixtureRequest) -> Iterator[None]:
    with drawn() if request.node.get_closest_marker("pictures") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def pictures_of_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    with drawn() if request.node.get_closest_marker("pictures") else nullcontext():
        yield


@pytest.fixture(scope="session")
def with_pictures() -> Callable[[], AbstractContextManager[None]]:
    """For runs that several tests share, and that are to have pictures: `with with_pictures():`."""
    return drawn


WAITING = (
    "cli",
    "cluster",
    "experiment",
    "faults",
    "gymnasium",
    "mlflow",
    "resume",
    "signals",
    "snapshot",
    "strangers",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that wait for processes come first: while the process of tests that has them waits, others compute. And
    the longest tests are not the last."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in WAITING)


def pytest_collection_finish() -> None:
    """What was loaded stays: Python need not look for garbage in it again and again."""
    gc.collect()
    gc.freeze()


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(name="proximo")
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """A command of Proximo's in this process, in the folder `cwd`. A process of its own takes seconds to begin."""

    def call(*args: object, cwd: Path | None = None) -> Done:
        if cwd is not None:
            monkeypatch.chdir(cwd)
            monkeypatch.setattr(proximo.run_dir.files, "START", cwd)
        monkeypatch.setattr(sys, "argv", ["proximo", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            proximo.cli.main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    # What sees to the end of a process would see to the end of the tests.
    monkeypatch.setattr(proximo.cli, "end_with_signals", lambda: None)
    monkeypatch.setattr(proximo.cli, "end_without_threads", lambda code: None)
    return call


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between modules, forget what was compiled once it takes much memory; within one, once it takes too much. Even a
    single addition, compiled, takes nearly 2 MB, and a process of tests compiles thousands. What is needed again is
    read from the files on disk."""
    same = nextitem is not None and nextitem.path == item.path
    if memory_in_use() < (TOO_MUCH_MEMORY if same else MUCH_MEMORY):
        return
    proximo.compile._kept.clear()
    jax.clear_caches()
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def memory_in_use() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say so in a file."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Of the processes that `-n` starts: what each took at most."""
    MEMORY.append(getattr(node, "workeroutput", {}).get("memory", 0.0))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """For what annotations forbid, and Proximo refuses in words of its own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The memory that the processes of the tests took, and what `make test-faults` tried."""
    if MEMORY:
        terminalreporter.write_line(
            f"memory: {', '.join(f'{peak:.1f}' for peak in MEMORY)} GiB at most in each process"
        )
    counts: dict[str, Counter[str]] = {}
    for report in (report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])):
        if "faults" in report.keywords and (report.when == "call" or report.failed):
            counts.setdefault(report.nodeid.partition("[")[0], Counter())[report.outcome] += 1
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"faults: {name}: {count['passed']:,} passed, {count['failed']:,} failed")
