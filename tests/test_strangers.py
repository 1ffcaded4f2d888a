"""Folders, names and settings from strangers, as the commands meet them: a sentence, nothing printed raw, nothing
written elsewhere, no wait."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proximo import PPOTrainer
from proximo.errors import UserError
from proximo.train import checkpoint

if TYPE_CHECKING:
    from conftest import Done

SIZES = dict(num_envs=2, rollout_length=8, minibatch_size=8, epochs_per_update=1, hidden_sizes=[8], total_timesteps=32)
SETTINGS: dict[str, Any] = SIZES | dict(eval_frequency=0, eval_episodes=1, checkpoint_every_steps=16, workers=0)
SMALL = ["--set", "env.num_envs=2", "--set", "ppo.rollout_length=8", "--set", "ppo.minibatch_size=8", "--steps", "32"]
SMALL += ["--set", "eval.episodes=1", "--set", "eval.frequency=0", "--set", "env.workers=0", "--no-preset"]
COMMAND = [sys.executable, "-c", "from proximo.cli import main; main()"]
ESCAPES = "\x1b[2J\x1b]52;c;aGk=\x07"


def command(*args: str, cwd: Path, **variables: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *args], capture_output=True, text=True, cwd=cwd, timeout=300, env=os.environ | variables
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs/whole`, complete, and `runs/half`, which has its end before it."""
    home = tmp_path_factory.mktemp("strangers")
    PPOTrainer("CartPole-v1", out=home / "runs" / "whole", preset=False, **SETTINGS).train()
    shutil.copytree(home / "runs" / "whole", home / "runs" / "half")
    checkpoint.newest(home / "runs" / "half").unlink()
    (home / "runs" / "half" / "result.json").unlink()
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path


def assert_sentence(done: Done, *words: str, code: int = 2) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("Error: ")
    for word in words:
        assert word in " ".join(done.stderr.split())
    assert_plain(done)


def assert_plain(done: Done) -> None:
    """Nothing that a terminal obeys."""
    for text in (done.stdout, done.stderr):
        assert all(letter.isprintable() or letter == "\n" for letter in text), repr(text)


def replace(path: Path, kind: str, outside: Path) -> None:
    """Put something else in the place of a file or folder, which goes `outside`."""
    path.rename(outside)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)


def contents(folder: Path) -> dict[Path, bytes]:
    files = [folder] if folder.is_file() else sorted(file for file in folder.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "device", "FIFO"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "models", "checkpoints", "result.json"])
def test_links_and_pipes_in_a_folder_are_refused(
    proximo: Callable[..., Done], home: Path, name: str, kind: str
) -> None:
    run, outside = home / "runs" / "whole", home / "outside"
    replace(run / name, kind, outside)
    before = contents(outside)
    for more in (16, None):
        with pytest.raises(UserError):
            PPOTrainer.resume(run, steps=more).train()
    assert contents(outside) == before
    for words in (["evaluate", "whole", "--episodes", "1"], ["sync", "whole"]) if kind == "link" else ():
        assert_sentence(proximo(*words, cwd=home), "link" if name != "config.yaml" or kind == "link" else "config")
    assert contents(outside) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "device", "FIFO"])
def test_lists_and_comparisons_do_not_wait_or_follow(proximo: Callable[..., Done], home: Path, kind: str) -> None:
    for number, name in enumerate(["metrics.jsonl", "config.yaml", "result.json"]):
        shutil.copytree(home / "runs" / "whole", home / "runs" / f"odd{number}")
        replace(home / "runs" / f"odd{number}" / name, kind, home / f"outside{number}")
    done = proximo("runs", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    assert sorted(Path(run["run"]).name for run in json.loads(done.stdout)) == ["half", "whole"]
    done = proximo("compare", "runs/odd0", "runs/whole", "--out", "out", cwd=home)
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        states = {run["path"]: run["state"] for run in json.loads((home / "out" / "summary.json").read_text())["runs"]}
        assert states["../runs/odd0"] in ("damaged", "missing")
    assert_sentence(proximo("compare", "runs/odd1", "--out", "out1", cwd=home))


@pytest.mark.slow
def test_a_folder_may_be_reached_through_a_link(home: Path) -> None:
    (home / "runs" / "near").symlink_to(home / "runs" / "half")
    result = PPOTrainer.resume(home / "runs" / "near").train()
    assert result["total_steps"] == 32


GOING = """
import os, gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
class Going(CartPoleEnv):
    def __init__(self, **options):
        os.makedirs("away", exist_ok=True)
        os.chdir("away")
        super().__init__(**options)
class Old(CartPoleEnv):
    def reset(self, **options):
        return super().reset(**options)[0]
class Pair(CartPoleEnv):
    def reset(self, **options):
        return super().reset(**options)[0][:2]
class Loud(CartPoleEnv):
    def step(self, action):
        import numpy
        numpy.float32(1e38) * numpy.float32(1e38)
        return super().step(action)
class Wide(CartPoleEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.observation_space = gymnasium.spaces.Discrete(2**40)
    def reset(self, **options):
        super().reset(**options)
        return 3, {}
for name in ("Going", "Old", "Pair", "Loud", "Wide"):
    if f"{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{name}-v0", f"{__name__}:{name}", max_episode_steps=20)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "odd_envs.py").write_text(GOING)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "odd_envs", raising=False)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "modules"), *sys.path])}


@pytest.mark.slow
@pytest.mark.parametrize("out", [["--out", "here/run"], []])
def test_an_environment_that_changes_the_working_directory(
    proximo: Callable[..., Done], tmp_path: Path, modules: dict[str, Any], out: list[Any]
) -> None:
    done = proximo("train", "odd_envs:Going-v0", *SMALL, *out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [run] = [file.parent for file in tmp_path.glob("*/*/result.json")]
    assert run.parent == tmp_path / ("here" if out else "runs")
    assert (run / "models" / "final_actor.safetensors").is_file()
    assert f"saved in    {run.relative_to(tmp_path)}" in done.stdout
    done = proximo("resume", str(run.relative_to(tmp_path)), "--steps", "16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not [file for file in tmp_path.rglob("away/**/*") if file.is_file()]


@pytest.mark.slow
def test_passwords_reach_no_file_and_no_message(
    proximo: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slash and an @ in it; nobody listens there. The address of a database as well."""
    monkeypatch.setenv("PROXIMO_MLFLOW", "1")
    for name, uri in (
        ("a", "http://somebody:pa/ss@wo:rd@127.0.0.1:9"),
        ("b", "postgresql://somebody:pa/ss@wo:rd@127.0.0.1:9/db"),
    ):
        done = proximo("train", "CartPole-v1", *SMALL, "--out", f"runs/{name}", "--mlflow", uri, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        more = proximo("resume", f"runs/{name}", "--steps", "16", "--mlflow", uri, cwd=tmp_path)
        assert more.returncode == 0, more.stderr
        sync = proximo("sync", f"runs/{name}", "--mlflow", uri, cwd=tmp_path)
        assert_sentence(sync, "127.0.0.1:9")
        said = "".join(text for one in (done, more, sync) for text in (one.stdout, one.stderr))
        assert "127.0.0.1:9" in said
        for secret in ("somebody", "pa/ss", "pa%2Fss", "wo:rd"):
            assert secret not in said
            found = [file for file in tmp_path.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
            assert not found


@pytest.mark.slow
def test_escape_sequences_are_spelled_out(proximo: Callable[..., Done], home: Path, tmp_path: Path) -> None:
    run = home / "runs" / f"x{ESCAPES}y"
    shutil.copytree(home / "runs" / "half", run)
    (home / "evil.yaml").write_text(json.dumps({f"pp{ESCAPES}o": 1}))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("CartPole-v1", json.dumps(f"Cart{ESCAPES}Pole-v1"), 1))
    done = proximo("runs", cwd=home)
    assert done.returncode == 0, done.stderr
    assert r"\x1b[2J" in done.stdout
    assert_plain(done)
    for words in (
        ["train", "--config", "evil.yaml"],
        ["train", f"Cart{ESCAPES}Pole-v1"],
        ["evaluate", f"runs/x{ESCAPES}y"],
        ["resume", f"runs/x{ESCAPES}y"],
        ["runs", "--best", f"Cart{ESCAPES}"],
        ["compare", f"no{ESCAPES}"],
        ["experiment", f"no{ESCAPES}.yaml"],
    ):
        done = proximo(*words, cwd=home)
        assert_plain(done)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run[/v2]", "x:smile:y", "[red]x"])
def test_names_are_no_markup(proximo: Callable[..., Done], tmp_path: Path, name: str) -> None:
    done = proximo("train", "CartPole-v1", *SMALL, "--out", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(name) >= 2
    done = proximo("evaluate", name, "--episodes", "1", cwd=tmp_path)
    assert f"of {name} on" in done.stdout


TOO_MUCH = {
    "network.hidden_sizes=[1000000000000]": "at most 65,536",
    "network.hidden_sizes=[65536, 65536, 65536]": "GB of memory; this machine has",
    "env.num_envs=1e9": "at most 1,048,576",
    "ppo.rollout_length=1e12": "at most 1,000,000,000",
    "env.timeout=1e30": "at most 1,000,000",
    "eval.episodes=1e30": "at most 1,000,000",
    "checkpoint.num_checkpoints=1000000000": "at most 1000",
    "agents.selfplay_every=1e18": "at most 1,000,000,000",
    "train.total_timesteps=1e19": "at most 1,000,000,000,000,000,000",
    "env.max_steps_per_episode=1e10": "at most 1,000,000,000",
    f"seed={'9' * 50_000}": "seed must be a whole number",
    f"ppo.gamma={'[' * 5_000}": "ppo.gamma must be a number",
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", TOO_MUCH)
def test_numbers_have_limits(proximo: Callable[..., Done], tmp_path: Path, setting: str) -> None:
    done = proximo("train", "CartPole-v1", "--no-preset", "--set", setting, "--out", "run", cwd=tmp_path)
    assert_sentence(done, TOO_MUCH[setting])
    assert len(done.stderr) < 500
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_samples_that_no_machine_holds(proximo: Callable[..., Done], tmp_path: Path) -> None:
    args = ["--set", "env.num_envs=1000000", "--set", "ppo.rollout_length=2000", "--set", "ppo.minibatch_size=1000000"]
    done = proximo("train", "gymnax/CartPole-v1", "--no-preset", *args, cwd=tmp_path)
    assert_sentence(done, "The 2,000,000,000 samples of an update (env.num_envs=1,000,000 * ppo.rollout_length=2,000)")


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [":", ":X", "X:", "a:b:c", ".evil:X-v0", "a..b:X-v0", "no_such_module:X-v0", "::"])
def test_ids_that_name_no_module(proximo: Callable[..., Done], tmp_path: Path, env_id: str) -> None:
    assert_sentence(proximo("train", env_id, *SMALL, cwd=tmp_path), env_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Old", "must return an observation and a dictionary"),
        ("Pair", "must return an observation and a dictionary"),
        ("Wide", "observation space Discrete(1099511627776)"),
    ],
)
def test_environments_that_cannot_be_trained_on(
    proximo: Callable[..., Done], tmp_path: Path, modules: dict[str, Any], name: str, words: str
) -> None:
    assert_sentence(proximo("train", f"odd_envs:{name}-v0", *SMALL, cwd=tmp_path), words)


@pytest.mark.slow
def test_quiet_is_quiet(tmp_path: Path, modules: dict[str, Any]) -> None:
    """Of the environment's process, too; the first environment is stepped in this one."""
    args = [*SMALL, "--set", "env.workers=1", "-q"]
    done = command("train", "odd_envs:Loud-v0", *args, cwd=tmp_path, **modules)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ONE_AFTER_ANOTHER = """
import json, sys
from proximo.cli import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["proximo", *words]
    try:
        main()
    except SystemExit as end:
        codes.append(end.code or 0)
print("ended with", *codes[:1], "and", *codes[1:])
"""


@pytest.mark.slow
def test_a_terminal_of_ascii(home: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    words = [["train", "CartPole-v1", *SMALL, "--out", "new"], ["evaluate", "new", "--episodes", "2"]]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(words)],
        capture_output=True,
        text=True,
        cwd=home,
        timeout=300,
        env=os.environ | plain,
    )
    assert done.returncode == 0, done.stderr
    assert "evaluation  " in done.stdout
    assert "ended with 0 and 0" in done.stdout


@pytest.mark.slow
def test_a_checkpoint_of_thousands_of_digits(proximo: Callable[..., Done], home: Path) -> None:
    for digits in (20, 5_000):
        done = proximo("evaluate", "whole", "--checkpoint", "9" * digits, cwd=home)
        assert_sentence(done, "has no policy 999")
    (home / "runs" / "whole" / "checkpoints" / f"step_{'9' * 200}.safetensors").write_text("")
    (home / "runs" / "whole" / "checkpoints" / "step_٣٣٣٣٣٣٣٣٣٣٣٣.safetensors").write_text("")
    assert checkpoint.steps(home / "runs" / "whole") == [0, 16, 32]


@pytest.mark.slow
def test_names_that_are_no_utf8(proximo: Callable[..., Done], home: Path) -> None:
    for name in (b"odd\xff", b"other\xfe"):
        shutil.copytree(home / "runs" / "whole", home / "runs" / os.fsdecode(name))
    words: list[str | bytes] = [*COMMAND, "compare", b"runs/odd\xff", b"runs/other\xfe", "--out", "out"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=home, timeout=300)
    assert done.returncode == 0, done.stderr
    assert r"odd\udcff" in (home / "out" / "report.html").read_text(encoding="utf-8")
    assert proximo("runs", cwd=home).returncode == 0


@pytest.mark.slow
def test_nothing_is_called_saved_that_is_not(tmp_path: Path) -> None:
    script = """
import shutil, sys
from pathlib import Path
from proximo import PPOTrainer
from proximo.display.console import Display
run = Path("run")
trainer = PPOTrainer("CartPole-v1", out=run, preset=False, console=Display(), **SETTINGS)
class Vanish:
    def log_training_step(self, metrics):
        shutil.rmtree(run, ignore_errors=True)
trainer.train(Vanish())
""".replace("SETTINGS", repr(SETTINGS))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 1
    assert "saved in" not in done.stdout
    assert "What was trained is in" in done.stderr


@pytest.mark.slow
def test_a_grid_is_counted_before_it_is_listed(proximo: Callable[..., Done], tmp_path: Path) -> None:
    names = ["gamma", "gae_lambda", "clip_epsilon", "entropy_coef", "value_coef", "learning_rate", "adaptive_kl"]
    names += ["max_grad_norm", "adam_epsilon", "target_kl"]
    lines = [f"  ppo.{name}: [{', '.join(f'0.{i}' for i in range(10, 20))}]" for name in names]
    (tmp_path / "grid.yaml").write_text("\n".join(["envs: CartPole-v1", "grid:", *lines]))
    assert_sentence(proximo("experiment", "grid.yaml", "--dry-run", cwd=tmp_path), "10,000,000,000 runs")


@pytest.mark.slow
def test_a_bomb_in_one_folder_does_not_keep_runs_from_being_listed(proximo: Callable[..., Done], home: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(10))]
    (home / "runs" / "half" / "config.yaml").write_text("\n".join([*lines, "ppo: {gamma: *a10}"]))
    done = proximo("runs", "--json", cwd=home)
    assert [Path(run["run"]).name for run in json.loads(done.stdout)] == ["whole"]
