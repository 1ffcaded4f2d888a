"""PPOAgent: acting, saving, loading, refusing."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces

from proximo import PPOAgent, settings
from proximo.errors import UserError
from proximo.policy.spaces import space_from_json, space_to_json

OBS = spaces.Box(-1, 1, (3,), np.float32)
SPACES = [
    spaces.Box(-2.0, np.inf, (2, 3), np.float32),
    spaces.Box(np.array([0, 1], np.float32), np.array([5, 6], np.float32)),
    spaces.Box(0, 255, (4, 4, 1), np.uint8),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(5, dtype=np.int32),
    spaces.MultiDiscrete([2, 3], start=[1, 0]),
    spaces.MultiBinary([2, 2]),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.MultiBinary(3), OBS])}),
]


def agent(action_space, **keywords):
    return PPOAgent(
        OBS, action_space, settings.build(settings.from_keywords({"hidden_sizes": [8], "seed": 1} | keywords))
    )


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_json(space):
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert again.dtype == space.dtype


@pytest.mark.parametrize("space", [*SPACES[1:2], *SPACES[3:7]], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_belong_to_the_space(space, deterministic):
    one = agent(space).act(np.zeros(3, np.float32), deterministic)
    assert space.contains(np.asarray(one, space.dtype))
    batch = agent(space).act(np.ones((5, 3), np.float32), deterministic)
    assert len(batch) == 5


def test_deterministic_actions_repeat_and_sampled_ones_vary():
    one = agent(spaces.Discrete(100))
    obs = np.zeros((50, 3), np.float32)
    np.testing.assert_array_equal(one.act(obs), one.act(obs))
    assert len(set(one.act(obs, deterministic=False).tolist())) > 10


def test_values_of_one_and_of_many():
    one = agent(spaces.Discrete(2))
    obs = np.eye(3, dtype=np.float32)
    assert isinstance(one.value(obs[0]), float)
    np.testing.assert_allclose(one.value(obs), [one.value(row) for row in obs], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("observations", [False, True])
def test_saved_agents_act_the_same_in_a_new_process(tmp_path, observations):
    one = agent(spaces.Box(-1, 1, (2,), np.float32), normalize_observations=observations)
    if observations:
        one.obs_stats = one.policy.update_stats(
            one.obs_stats, np.arange(12, dtype=np.float32).reshape(4, 3), jnp.ones(4, bool)
        )
    path = one.save(tmp_path / "policy")
    code = (
        "import sys, numpy as np; from proximo import PPOAgent; a = PPOAgent.load(sys.argv[1]);"
        "print(a.act(np.ones(3, np.float32)).tolist(), a.value(np.ones(3, np.float32)))"
    )
    printed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout
    assert printed.split() == f"{one.act(np.ones(3)).tolist()} {one.value(np.ones(3))}".split()


def test_parts_say_what_they_lack(tmp_path):
    one = agent(spaces.Discrete(2))
    actor = PPOAgent.load(one.save_policy_net(tmp_path / "actor"))
    critic = PPOAgent.load(one.save_value_net(tmp_path / "critic.safetensors"))
    assert actor.act(np.zeros(3)) in (0, 1)
    assert critic.value(np.zeros(3)) == one.value(np.zeros(3))
    with pytest.raises(UserError, match="saved with its actor only; `value` needs the critic"):
        actor.value(np.zeros(3))
    with pytest.raises(UserError, match="`act` needs the actor"):
        critic.act(np.zeros(3))


def test_wrong_observations_are_refused():
    with pytest.raises(UserError, match=r"must have the shape \(3,\)"):
        agent(spaces.Discrete(2)).act(np.zeros(4))


def test_foreign_and_broken_files_are_refused(tmp_path):
    path = agent(spaces.Discrete(2)).save(tmp_path / "policy")
    whole = path.read_bytes()
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    (tmp_path / "foreign.safetensors").write_bytes(safetensors.numpy.save({"w": np.zeros(2)}))
    with safetensors.safe_open(path, "numpy") as file:
        meta, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = next(iter(tensors))
    reshaped = tensors | {name: np.zeros((2, 2), np.float32)}
    renamed = {f"{key}x": value for key, value in tensors.items()}
    (tmp_path / "shape.safetensors").write_bytes(safetensors.numpy.save(reshaped, meta))
    (tmp_path / "names.safetensors").write_bytes(safetensors.numpy.save(renamed, meta))
    for broken in ("text", "cut", "foreign", "shape", "names", "missing"):
        with pytest.raises(UserError, match=broken):
            PPOAgent.load(tmp_path / f"{broken}.safetensors")


def test_saving_leaves_nothing_half_written(tmp_path, monkeypatch):
    one = agent(spaces.Discrete(2))
    path = one.save(tmp_path / "policy")
    before = path.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    one.params = jax.tree.map(lambda leaf: leaf + 1, one.params)
    with pytest.raises(OSError, match="no space"):
        one.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.safetensors"]
    assert path.read_bytes() == before
