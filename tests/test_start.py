"""Runs that start from a saved policy: what they take, what they record, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import team_probes
from killed import assert_same_run
from proximo import PPOAgent, PPOTrainer, TeamAgent, run_multiple_experiments, settings
from proximo.config import Config
from proximo.errors import UserError
from proximo.run_dir.read import read_config
from proximo.spaces import first_difference, form_key
from proximo.train import checkpoint

SMALL: dict[str, Any] = dict(
    num_envs=2,
    rollout_length=8,
    minibatch_size=8,
    hidden_sizes=[8],
    total_timesteps=64,
    epochs_per_update=1,
    eval_frequency=0,
    eval_episodes=1,
    num_checkpoints=0,
    max_steps_per_episode=20,
    preset=False,
)
NEW = {name: value for name, value in SMALL.items() if name != "hidden_sizes"}
"""The networks come with the policy."""
CARTPOLE = "gymnax/CartPole-v1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start") / "first"
    PPOTrainer(CARTPOLE, out=path, **SMALL).train()
    return path


@pytest.fixture(scope="module")
def team_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start") / "team"
    PPOTrainer(team_probes.TwoKinds(), out=path, **SMALL).train()
    return path


def said(trainer: PPOTrainer) -> str:
    return " ".join(trainer._start.remarks)


def assert_same(one: Any, other: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def differs(one: Any, other: Any) -> bool:
    return any((a != b).any() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_a_run_gives_everything(run: Path, tmp_path: Path) -> None:
    """Actor, critic and both kinds of statistics, into networks that the policy says the size of; a new seed else."""
    old = PPOTrainer.resume(run).agent
    new = PPOTrainer(CARTPOLE, start_from=run, out=tmp_path / "new", seed=5, **NEW)
    assert new.agent is not old
    for part in ("params", "obs_stats", "reward_stats"):
        assert_same(getattr(new.agent, part), getattr(old, part))
    assert float(new.agent.reward_stats.count) > 0
    assert new.config.network.hidden_sizes == (8,)
    assert said(new).startswith("Starting from ")
    assert "critic" not in said(new)


@pytest.mark.parametrize(
    ("file", "whole"),
    [
        ("checkpoints/best.safetensors", True),
        ("models/final_actor.safetensors", False),
        ("models/final_actor", False),
        ("models/best_return_pi_ckpt.safetensors", False),
    ],
)
def test_files_give_what_they_hold(file: str, whole: bool, run: Path, tmp_path: Path) -> None:
    """A file without critic starts a new one, drawn by the new run's seed, and says so."""
    old, new = PPOTrainer.resume(run).agent, PPOTrainer(CARTPOLE, start_from=run / file, out=tmp_path / "new", **NEW)
    assert_same(new.agent.params["actor"], old.params["actor"])
    assert_same(new.agent.obs_stats, old.obs_stats)
    fresh = PPOTrainer(CARTPOLE, out=tmp_path / "fresh", **SMALL).agent
    assert differs(new.agent.params["critic"], fresh.params["critic"]) == whole
    assert ("It holds no critic: a new one begins." in said(new)) != whole


def test_an_agent_without_critic_is_trained(run: Path, tmp_path: Path) -> None:
    agent = PPOAgent.load(run / "models" / "final_actor.safetensors")
    before = agent.params["actor"]
    trainer = PPOTrainer(CARTPOLE, agent=agent, out=tmp_path / "run", **NEW)
    assert_same(trainer.agent.params["actor"], before)
    assert said(trainer) == "The agent was saved without its critic: a new one begins."
    trainer.train()
    assert differs(agent.params["actor"], before)
    assert agent.value(np.zeros(4, np.float32)) == trainer.agent.value(np.zeros(4, np.float32))
    with pytest.raises(UserError, match="saved with its critic only; training needs the actor"):
        PPOTrainer(CARTPOLE, agent=PPOAgent.load(run / "models" / "final_critic.safetensors"), **NEW)


def test_the_settings_reproduce_the_run(run: Path, tmp_path: Path) -> None:
    """To the bit; but not from another policy."""
    copy = tmp_path / "policy.safetensors"
    shutil.copy(run / "models" / "final_actor.safetensors", copy)
    one, two = tmp_path / "one", tmp_path / "two"
    PPOTrainer(CARTPOLE, start_from=copy, out=one, **NEW).train()
    config = read_config(one)
    assert config.train.start_from == str(copy)
    assert config.train.start_digest is not None
    PPOTrainer(config=one / "config.yaml", out=two).train()
    assert_same_run(one, two)
    shutil.copy(one / "models" / "final_actor.safetensors", copy)
    with pytest.raises(UserError, match=r"policy.safetensors is not what these settings started from: its checksum is"):
        PPOTrainer(config=one / "config.yaml", out=tmp_path / "three")


def test_an_agent_in_memory_is_saved_with_the_run(run: Path, tmp_path: Path) -> None:
    agent = PPOAgent.load(run / "models" / "final_actor.safetensors")
    before = jax.tree.map(np.array, agent.params)
    one, two = tmp_path / "one", tmp_path / "two"
    PPOTrainer(CARTPOLE, start_from=agent, out=one, **NEW).train()
    assert_same(agent.params, before)  # it is not the one that is trained
    assert_same(PPOAgent.load(one / "models" / "start.safetensors").params, before)
    PPOTrainer(config=one / "config.yaml", out=two).train()
    (one / "models" / "start.safetensors").unlink()
    assert_same_run(one, two)


def test_a_run_that_was_started_so_resumes_to_the_bit(run: Path, tmp_path: Path) -> None:
    """Without the policy that it started from, which is in the checkpoint."""
    copy = tmp_path / "policy"
    shutil.copytree(run, copy)
    given = NEW | {"start_from": copy, "every_steps": 16, "seed": 3}
    PPOTrainer(CARTPOLE, out=tmp_path / "whole", **given).train()
    PPOTrainer(CARTPOLE, out=tmp_path / "cut", **given).train(lambda metrics: metrics["step"] < 32)
    shutil.rmtree(copy)
    trainer = PPOTrainer.resume(tmp_path / "cut")
    assert trainer.config.train.start_from == str(copy)
    trainer.train()
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert read_config(tmp_path / "cut") == read_config(tmp_path / "whole")


@pytest.mark.slow
def test_memory_starts_too(tmp_path: Path) -> None:
    PPOTrainer(CARTPOLE, out=tmp_path / "gru", memory="gru", memory_size=4, torso="shared", **SMALL).train()
    trainer = PPOTrainer(CARTPOLE, start_from=tmp_path / "gru", out=tmp_path / "more", **NEW)
    assert_same(trainer.agent.params, PPOTrainer.resume(tmp_path / "gru").agent.params)
    trainer.train()
    actor = PPOTrainer(CARTPOLE, start_from=tmp_path / "gru/models/final_actor", out=tmp_path / "other", **NEW).agent
    assert_same(actor.params["torso"], PPOTrainer.resume(tmp_path / "gru").agent.params["torso"])


def test_frames_are_stacked_as_the_policy_has_them(tmp_path: Path) -> None:
    PPOTrainer(CARTPOLE, out=tmp_path / "one", frame_stack=2, **SMALL).train()
    assert PPOTrainer(CARTPOLE, start_from=tmp_path / "one", **NEW).config.env.frame_stack == 2


@pytest.mark.slow
def test_a_team_starts_from_a_team(team_run: Path, tmp_path: Path) -> None:
    old = PPOTrainer.resume(team_run, team_probes.TwoKinds()).agent
    for start in (team_run, team_run / "models" / "final_actor", TeamAgent.load(team_run / "models")):
        trainer = PPOTrainer(team_probes.TwoKinds(), start_from=start, out=tmp_path / "new", **NEW)
        for name, group in trainer.agent.groups.items():
            assert_same(group.params["actor"], old.groups[name].params["actor"])
    trainer.train()
    files = sorted(file.name for file in (tmp_path / "new" / "models").glob("start.*"))
    assert files == ["start.aimer.safetensors", "start.sorter.safetensors"]
    again = PPOTrainer(team_probes.TwoKinds(), config=tmp_path / "new" / "config.yaml", out=tmp_path / "again")
    again.train()
    for file in files:
        (tmp_path / "new" / "models" / file).unlink()
    assert_same_run(tmp_path / "new", tmp_path / "again")


@pytest.mark.slow
def test_one_group_of_a_team_is_not_a_team(team_run: Path, run: Path) -> None:
    file = next((team_run / "models").glob("final_actor.sorter.*"))
    with pytest.raises(UserError, match=r"has the groups sorter; two-kinds has sorter, aimer\. `--partial`"):
        PPOTrainer(team_probes.TwoKinds(), start_from=file, **NEW)
    with pytest.raises(UserError, match=r"has the groups agent; two-kinds has sorter, aimer"):
        PPOTrainer(team_probes.TwoKinds(), start_from=run, **NEW)
    trainer = PPOTrainer(team_probes.TwoKinds(), start_from=file, start_partial=True, **NEW)
    assert "New are sorter/critic/" in said(trainer)
    old = PPOAgent.load(file)
    assert_same(trainer.agent.groups["sorter"].params["actor"], old.params["actor"])


class Pole(gymnasium.Env[Any, Any]):
    """Of CartPole's form, with bounds, precision, sizes and actions to choose."""

    def __init__(self, seen: Any = None, done: Any = None):
        self.observation_space = seen or spaces.Box(-1, 1, (4,), np.float64)
        self.action_space = done or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, True, {}


def test_other_bounds_are_accepted_and_said(run: Path, tmp_path: Path) -> None:
    trainer = PPOTrainer(Pole, start_from=run, out=tmp_path / "new", workers=0, **NEW)
    assert "Its observation_space and that of Pole differ in bounds or precision alone." in said(trainer)
    assert trainer.agent.policy.observation_space == spaces.Box(-1, 1, (4,), np.float64)
    trainer.train()


@pytest.mark.parametrize(
    ("seen", "done", "words"),
    [
        (spaces.Box(-1, 1, (5,)), None, r"The observation_space of .* is Box\(.*\(4,\).*; .* has Box\(.*\(5,\).*"),
        (None, spaces.Discrete(3), r"The action_space of .* is Discrete\(2.*; .* has Discrete\(3\)\. `--partial`"),
        (spaces.Box(0, 255, (4,), np.uint8), None, r"The observation_space of .* has Box\(0, 255"),
    ],
)
def test_other_spaces_are_named(seen: Any, done: Any, words: str, run: Path) -> None:
    with pytest.raises(UserError, match=words):
        PPOTrainer(lambda: Pole(seen, done), start_from=run, workers=0, **NEW)


def test_the_place_where_nested_spaces_differ_is_found() -> None:
    small, large = spaces.Box(0, 1, (2,)), spaces.Box(0, 9, (3,))
    eye: spaces.Discrete[Any] = spaces.Discrete(3)
    one = spaces.Dict({"arm": spaces.Tuple([eye, small]), "eye": eye})
    two = spaces.Dict({"arm": spaces.Tuple([eye, large]), "eye": eye})
    assert first_difference(one, two) == (("arm", 1), small, large)
    assert form_key(one) != form_key(two)
    alike = spaces.Tuple([spaces.Discrete(3, dtype=np.int32), spaces.Box(0, 9, (2,), np.float64)])
    assert form_key(alike) == form_key(spaces.Tuple([eye, small]))
    fewer = spaces.Dict({"eye": eye})
    assert first_difference(one, fewer) == ((), one, fewer)


def test_parts_that_fit_are_taken_on_request(run: Path, tmp_path: Path) -> None:
    """One more number to see and one more action: the first and the last layers are new, what lies between is taken,
    and so are the statistics of rewards."""
    given = NEW | {"hidden_sizes": [8, 8]}
    first = PPOTrainer(CARTPOLE, out=tmp_path / "first", **given)
    first.train()
    wider = lambda: Pole(spaces.Box(-1, 1, (5,)), spaces.Discrete(3))  # noqa: E731
    trainer = PPOTrainer(wider, start_from=tmp_path / "first", start_partial=True, workers=0, **NEW)
    assert trainer.config.network.hidden_sizes == (8, 8)
    old, new = first.agent, trainer.agent
    hidden = [name for name in old.params["actor"] if name.startswith("Dense")]
    same = {name: not differs_in_shape(old, new, name) for name in hidden}
    assert sum(same.values()) == 1
    taken = next(name for name, fits in same.items() if fits)
    assert_same(new.params["actor"][taken], old.params["actor"][taken])
    assert_same(new.reward_stats, old.reward_stats)
    assert float(new.obs_stats.count) == 0
    assert "layers and statistics fit. New are " in said(trainer)
    assert "obs_stats" in said(trainer)
    with pytest.raises(UserError, match=r"No layer of .* fits these networks"):
        PPOTrainer(wider, start_from=run, start_partial=True, hidden_sizes=[3, 5], workers=0, **NEW)


def differs_in_shape(old: PPOAgent, new: PPOAgent, name: str) -> bool:
    shapes = [jax.tree.map(np.shape, agent.params["actor"][name]) for agent in (old, new)]
    return bool(shapes[0] != shapes[1])


def test_what_a_policy_is_cannot_be_changed(run: Path) -> None:
    with pytest.raises(UserError, match=r"network.hidden_sizes is \[8\] in .*, and cannot become \[4\]; leave it out"):
        PPOTrainer(CARTPOLE, start_from=run, **NEW, hidden_sizes=[4])
    with pytest.raises(UserError, match=r"network.hidden_sizes is"):
        PPOTrainer(CARTPOLE, start_from=run, config=Config())
    with pytest.raises(UserError, match="`agent` is what is trained"):
        PPOTrainer(CARTPOLE, start_from=run, agent=PPOAgent.load(run / "models" / "final_actor"), **NEW)
    with pytest.raises(UserError, match=r"train.start_partial has no effect without train.start_from"):
        PPOTrainer(CARTPOLE, start_partial=True, **SMALL)


def test_own_networks_start_from_own_ones(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has a built-in distribution: leave out `distribution`"):
        PPOTrainer(CARTPOLE, start_from=run, distribution=probes_distribution, out=tmp_path / "one", **NEW)
    PPOTrainer(CARTPOLE, distribution=probes_distribution, out=tmp_path / "own", **SMALL).train()
    with pytest.raises(UserError, match=r"a distribution that is not built in: hand it in again, as `distribution=`"):
        PPOTrainer(CARTPOLE, start_from=tmp_path / "own", **NEW)
    PPOTrainer(CARTPOLE, start_from=tmp_path / "own", distribution=probes_distribution, **NEW)


def probes_distribution(space: Any, network: Any) -> Any:
    from proximo.policy.distributions.composite import build_distribution

    return build_distribution(space, network)


def test_strange_files_are_refused_in_words(run: Path, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.safetensors"
    nonsense.write_bytes(b"\x00" * 64)
    damaged = tmp_path / "damaged.safetensors"
    whole = (run / "models" / "final_actor.safetensors").read_bytes()
    damaged.write_bytes(whole[:-4] + b"\x01\x02\x03\x04")
    (tmp_path / "weights.pth").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for given, words in {
        nonsense: "is not a file of Proximo's, or it is damaged",
        damaged: "its checksum is wrong",
        tmp_path / "weights.pth": "is a PyTorch state dict",
        tmp_path / "empty": "is not a run",
        tmp_path / "gone": "There is no policy .* to start from",
    }.items():
        with pytest.raises(UserError, match=words):
            PPOTrainer(CARTPOLE, start_from=given, **NEW)


@pytest.mark.slow
def test_the_command(run: Path, tmp_path: Path, proximo: Callable[..., Any]) -> None:
    shutil.copytree(run, tmp_path / "runs" / "first")
    sizes = [f"--set={name}={value}" for name, value in (("env.num_envs", 2), ("ppo.rollout_length", 8))]
    sizes += ["--set=ppo.minibatch_size=8", "--set=eval.episodes=1", "--set=env.max_steps_per_episode=20"]
    given = ("train", CARTPOLE, "--steps", 32, "--out", "new", "--from", "first", *sizes)
    done = proximo(*given, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    newest = checkpoint.newest(Path("runs/first"))
    assert f"Starting from {newest}." in done.stdout.replace("\n", "")
    assert read_config(tmp_path / "new").train.start_from == str(tmp_path / "runs" / "first")
    done = proximo(*given, "--set", "network.hidden_sizes=[4]", cwd=tmp_path)
    assert done.returncode == 2
    assert "network.hidden_sizes is [8] in" in done.stderr
    partial = ("train", CARTPOLE, "--steps", 16, "--out", "part", "--from", "first", "--partial", *sizes)
    done = proximo(*partial, "--set", "network.hidden_sizes=[8, 2]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "layers and statistics fit. New are" in done.stdout.replace("\n", " ")


@pytest.mark.slow
def test_experiments_start_from_policies(run: Path, tmp_path: Path) -> None:
    """Every run of a trial that names one, each with its own seed; what the policy is comes along."""
    given = {name: value for name, value in NEW.items() if name != "preset"}
    trials: dict[str, dict[str, Any]] = {"anew": {"network.hidden_sizes": [8]}, "on": {"train.start_from": str(run)}}
    run_multiple_experiments(CARTPOLE, trials, seeds=2, out=tmp_path / "both", preset=False, **given)
    plan = json.loads((tmp_path / "both" / "experiment.json").read_text())
    for planned in plan["runs"]:
        config = read_config(tmp_path / "both" / planned["path"])
        assert config.network.hidden_sizes == (8,)
        assert (config.train.start_digest is not None) == (planned["trial"] == "on")
        result = json.loads((tmp_path / "both" / planned["path"] / "result.json").read_text())
        assert result["stop_reason"] == "budget"


def test_paths_are_settings(run: Path) -> None:
    assert settings.from_keywords({"start_from": run}) == {"train.start_from": str(run)}


@pytest.mark.slow
def test_other_arguments_of_the_environment_are_said(tmp_path: Path) -> None:
    PPOTrainer(
        "CartPole-v1", env_kwargs={"sutton_barto_reward": True}, workers=0, out=tmp_path / "one", **SMALL
    ).train()
    same = PPOTrainer("CartPole-v1", start_from=tmp_path / "one", env_kwargs={"sutton_barto_reward": True}, **NEW)
    assert "was trained with env" not in said(same)
    other = PPOTrainer("CartPole-v1", start_from=tmp_path / "one", **NEW)
    assert "was trained with env.kwargs={'sutton_barto_reward': True}; this run has None" in said(other)
