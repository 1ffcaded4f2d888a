"""PPOAgent: acting, saving, loading, refusing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces

from proximo import PPOAgent, settings
from proximo.config import Config
from proximo.errors import UserError
from proximo.policy.networks import Network
from proximo.policy.normalize import RunningStats
from proximo.policy.observation import Features
from proximo.policy.policy import Policy
from proximo.policy.spaces import space_from_json, space_to_json
from proximo.run_dir import tensors
from proximo.spaces import leaves, pick

BOOL: Any = bool  # a dtype that Gymnasium takes, and its annotations do not

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
    spaces.Box(-0.1, 0.1, (2,), np.float64),
    spaces.Box(-np.inf, np.inf, (), np.float16),
    spaces.Box(0, 1, (2,), BOOL),
    spaces.Box(-(2**62), 2**62, (2,), np.int64),
    spaces.Box(0, 2**64 - 1, (1,), np.uint64),
    spaces.Tuple([spaces.Discrete(2, start=-3), spaces.Dict({"x": spaces.Box(0, 9, (), np.uint8)})]),
]


def agent(action_space: spaces.Space[Any], **keywords: Any) -> PPOAgent:
    plain = {"hidden_sizes": [8], "seed": 1, "normalize_observations": False, "normalize_rewards": False}
    return PPOAgent(OBS, action_space, settings.build(settings.from_keywords(plain | keywords)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_json(space: spaces.Space[Any]) -> None:
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert again.dtype == space.dtype


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_belong_to_the_space(space: spaces.Space[Any]) -> None:
    one = agent(space)
    for deterministic in (True, False):
        assert space.contains(one.act(np.zeros(3, np.float32), deterministic))
        batch = one.act(np.ones((5, 3), np.float32), deterministic)
        for path, leaf in leaves(space):
            assert leaf.shape is not None
            assert pick(batch, path).shape == (5, *leaf.shape)
            assert pick(batch, path).dtype == leaf.dtype


def test_box_subclasses_are_saved_as_boxes() -> None:
    class Special(spaces.Box):
        pass

    assert space_from_json(space_to_json(Special(-1, 1, (2,)))) == spaces.Box(-1, 1, (2,))


def test_deterministic_actions_repeat_and_sampled_ones_vary() -> None:
    one = agent(spaces.Discrete(100))
    obs = np.zeros((50, 3), np.float32)
    np.testing.assert_array_equal(one.act(obs), one.act(obs))
    assert len(set(one.act(obs, deterministic=False).tolist())) > 10


# Masks

HYBRID = spaces.Dict({"kind": spaces.Discrete(4), "bits": spaces.MultiBinary(1), "aim": spaces.Box(-1, 1, (1,))})


@pytest.mark.slow
def test_a_mask_of_one_observation_is_taken_as_the_environment_gives_it() -> None:
    one = agent(HYBRID)
    nested = {"kind": [0, 0, 1, 0], "bits": [[0, 1]]}
    flat = np.array([0, 1, 0, 0, 1, 0], np.int8)  # bits, then kind: the keys are sorted
    for mask in (nested, flat):
        for deterministic in (True, False):
            action = one.act(np.zeros(3), deterministic, mask)
            assert (action["kind"], action["bits"].tolist()) == (2, [1])


@pytest.mark.slow
def test_masks_of_a_batch_are_taken_row_by_row() -> None:
    eye = np.eye(4, dtype=bool)
    assert agent(spaces.Discrete(4)).act(np.zeros((4, 3)), False, eye).tolist() == [0, 1, 2, 3]
    assert agent(spaces.Discrete(4)).act(np.zeros((4, 3)), False, eye.tolist()).tolist() == [0, 1, 2, 3]
    nested = {"kind": eye, "bits": np.ones((4, 1, 2), bool)}
    assert agent(HYBRID).act(np.zeros((4, 3)), False, nested)["kind"].tolist() == [0, 1, 2, 3]
    bits = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]])
    assert agent(spaces.MultiBinary(2)).act(np.zeros((2, 3)), False, bits).tolist() == [[0, 1], [1, 0]]


def dict_agent(action_space: spaces.Space[Any], **entries: Any) -> PPOAgent:
    return PPOAgent(spaces.Dict({"x": OBS} | entries), action_space, settings.build(settings.from_keywords({})))


@pytest.mark.slow
def test_a_mask_in_the_observation_is_used() -> None:
    one = dict_agent(spaces.Discrete(4))
    for allowed in range(4):
        assert one.act({"x": np.zeros(3), "action_mask": np.arange(4) == allowed}, deterministic=False) == allowed
    rows = {"x": np.zeros((4, 3)), "action_mask": np.eye(4, dtype=np.int8)}
    assert one.act(rows).tolist() == [0, 1, 2, 3]
    assert one.act(rows, action_mask=np.eye(4)[::-1]).tolist() == [3, 2, 1, 0]
    assert dict_agent(OBS).act({"x": np.zeros(3), "action_mask": np.ones(4)}).shape == (3,)


@pytest.mark.slow
def test_a_mask_that_is_an_observation_is_only_that() -> None:
    one = dict_agent(spaces.Discrete(2), action_mask=spaces.MultiBinary(2))
    best = one.act({"x": np.zeros(3), "action_mask": np.zeros(2)})
    assert one.act({"x": np.zeros(3), "action_mask": np.zeros(2)}, action_mask=[best == 1, best == 0]) == 1 - best


@pytest.mark.parametrize(
    ("obs", "mask"),
    [
        (np.zeros(3), np.ones(5)),
        (np.zeros(3), np.ones((2, 4))),
        (np.zeros((2, 3)), np.ones(4)),
        (np.zeros((2, 3)), np.ones((3, 4))),
        (np.zeros((2, 3)), np.ones((2, 5))),
        (np.zeros((2, 3)), [[1, 1], [1]]),
    ],
    ids=range(6),
)
def test_masks_that_do_not_fit_are_refused(obs: np.ndarray, mask: Any) -> None:
    with pytest.raises(UserError, match="action mask does not fit"):
        agent(spaces.Discrete(4)).act(obs, action_mask=mask)


def test_values_of_one_and_of_many() -> None:
    one = agent(spaces.Discrete(2))
    obs = np.eye(3, dtype=np.float32)
    assert isinstance(one.value(obs[0]), float)
    np.testing.assert_allclose(one.value(obs), [one.value(row) for row in obs], rtol=1e-5)


def with_rewards(variance: float, **keywords: Any) -> PPOAgent:
    """An agent whose critic learned from rewards in units of sqrt(`variance`)."""
    one = agent(spaces.Discrete(2), normalize_rewards=True, **keywords)
    one.reward_stats = RunningStats(jnp.float32(100), jnp.float32(-3), jnp.float32(variance))
    return one


def test_values_are_in_the_units_of_the_environment() -> None:
    """The same critic: rewards divided by 25 make values that are to be multiplied by 25."""
    obs = np.eye(3, dtype=np.float32)
    plain, fresh = agent(spaces.Discrete(2)), agent(spaces.Discrete(2), normalize_rewards=True)
    np.testing.assert_allclose(fresh.value(obs), plain.value(obs), rtol=1e-6)
    np.testing.assert_allclose(with_rewards(625.0).value(obs), 25 * plain.value(obs), rtol=1e-6)


@pytest.mark.slow
def test_statistics_of_rewards_are_saved_with_the_critic(tmp_path: Path) -> None:
    one, obs = with_rewards(625.0), np.ones(3)
    for saved in (one.save(tmp_path / "whole"), one.save_value_net(tmp_path / "critic")):
        again = PPOAgent.load(saved)
        assert [float(leaf) for leaf in jax.tree.leaves(again.reward_stats)] == [100, -3, 625]
        assert again.value(obs) == one.value(obs)
    actor = PPOAgent.load(one.save_policy_net(tmp_path / "actor"))
    assert (actor.reward_stats, actor.act(obs)) == (None, one.act(obs))
    odd = tensors.named({"params": one.params, "obs_stats": None, "reward_stats": one.reward_stats})
    del odd["reward_stats/var"]
    tensors.write(tmp_path / "odd.safetensors", "policy", odd, one.describe())
    with pytest.raises(UserError, match="the tensor reward_stats/var is missing"):
        PPOAgent.load(tmp_path / "odd.safetensors")


def test_a_file_without_statistics_of_rewards_acts_and_says_no_values(tmp_path: Path) -> None:
    one = with_rewards(625.0)
    tensors.write(tmp_path / "old.safetensors", "policy", tensors.named({"params": one.params}), one.describe())
    old = PPOAgent.load(tmp_path / "old.safetensors")
    assert old.act(np.ones(3)) == one.act(np.ones(3))
    with pytest.raises(UserError, match="the unit of its values is not known"):
        old.value(np.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("observations", [False, True])
def test_saved_agents_act_the_same_in_a_new_process(tmp_path: Path, observations: bool) -> None:
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


def test_hybrid_actions_survive_saving(tmp_path: Path) -> None:
    one = agent(HYBRID)
    again = PPOAgent.load(one.save(tmp_path / "policy"))
    assert again.policy.distribution == one.policy.distribution
    assert again.act(np.ones(3)) == one.act(np.ones(3))


def test_parts_say_what_they_lack(tmp_path: Path) -> None:
    one = agent(spaces.Discrete(2))
    actor = PPOAgent.load(one.save_policy_net(tmp_path / "actor"))
    critic = PPOAgent.load(one.save_value_net(tmp_path / "critic.safetensors"))
    assert actor.act(np.zeros(3)) in (0, 1)
    assert critic.value(np.zeros(3)) == one.value(np.zeros(3))
    with pytest.raises(UserError, match="saved with its actor only; `value` needs the critic"):
        actor.value(np.zeros(3))
    with pytest.raises(UserError, match="`act` needs the actor"):
        critic.act(np.zeros(3))


@pytest.mark.slow
def test_parts_hold_the_torso_that_they_share(tmp_path: Path) -> None:
    one = agent(spaces.Discrete(2), torso="shared", layer_norm=True)
    obs = np.ones(3)
    actor = PPOAgent.load(one.save_policy_net(tmp_path / "actor"))
    critic = PPOAgent.load(one.save_value_net(tmp_path / "critic"))
    whole = PPOAgent.load(one.save(tmp_path / "whole"))
    assert (set(actor.params), set(critic.params)) == ({"torso", "actor"}, {"torso", "critic"})
    assert actor.act(obs) == whole.act(obs) == one.act(obs)
    assert critic.value(obs) == whole.value(obs) == one.value(obs)
    with pytest.raises(UserError, match="saved with its actor only; `value` needs the critic"):
        actor.value(obs)


class Weights(NamedTuple):
    """Parameters may be any tree of arrays."""

    kernel: Any
    layers: list[Any]


def own(policy: Policy) -> dict[str, Any]:
    def linear(width: int) -> Network:
        def init(key: jax.Array, features: Features) -> tuple[Any, Any]:
            return Weights(jax.random.normal(key, (3, width)), [jnp.ones(width), {"scale": jnp.ones(())}]), ()

        def apply(params: Any, carry: Any, features: Features) -> tuple[Any, jax.Array]:
            return carry, features.vector @ params.kernel * params.layers[1]["scale"] + params.layers[0][None]

        return Network(init, apply)

    return {"actor": linear(policy.distribution.num_params), "critic": linear(1)}


def as_it_is(networks: dict[str, Network], name: str) -> Network:
    """The networks behind a torso that is one more of them, and gives the features on."""
    if name != "torso":
        return networks[name]
    return Network(networks["critic"].init, lambda params, carry, features: (carry, features))


def test_own_networks_are_saved_and_handed_in_again(tmp_path: Path) -> None:
    one = PPOAgent(OBS, spaces.Discrete(5), network=own)
    path, obs = one.save(tmp_path / "policy"), np.eye(3)
    again = PPOAgent.load(path, network=own)
    assert isinstance(again.params["actor"], Weights)
    np.testing.assert_array_equal(again.act(obs), one.act(obs))
    np.testing.assert_array_equal(again.value(obs), one.value(obs))
    with pytest.raises(UserError, match="networks are not built-in ones: hand in again"):
        PPOAgent.load(path)
    with pytest.raises(UserError, match="does not fit its own settings: the tensor params/torso/kernel is missing"):
        PPOAgent.load(
            path, network=lambda policy: {name: as_it_is(own(policy), name) for name in ("torso", *own(policy))}
        )
    with pytest.raises(UserError, match="networks are built-in ones: hand in none"):
        PPOAgent.load(agent(spaces.Discrete(2)).save(tmp_path / "built-in"), network=own)


def test_wrong_observations_are_refused() -> None:
    with pytest.raises(UserError, match=r"must have the shape \(3,\)"):
        agent(spaces.Discrete(2)).act(np.zeros(4))


def test_foreign_and_broken_files_are_refused(tmp_path: Path) -> None:
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


def test_saving_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = agent(spaces.Discrete(2))
    path = one.save(tmp_path / "policy")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    one.params = jax.tree.map(lambda leaf: leaf + 1, one.params)
    with pytest.raises(OSError, match="no space"):
        one.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.safetensors"]
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_pytorch_state_dict_computes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    one = agent(spaces.Discrete(5), hidden_sizes=[8, 8], normalize_observations=True)
    assert one.save_policy_net(tmp_path / "actor.pth") == tmp_path / "actor.pth"
    state = torch.load(tmp_path / "actor.pth", weights_only=True)
    network = torch.nn.Sequential(*(torch.nn.Linear(*shape) for shape in ((3, 8), (8, 8), (8, 5))))
    for number, layer in enumerate(network):
        layer.load_state_dict({name: state[f"actor.Dense_{number}.{name}"] for name in ("weight", "bias")})
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
    seen = (obs - state["obs_stats.mean"]) / torch.sqrt(state["obs_stats.var"])
    logits = network[2](torch.tanh(network[1](torch.tanh(network[0](seen)))))
    assert logits.argmax(1).tolist() == one.act(obs.numpy()).tolist()


def test_a_state_dict_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="needs PyTorch; pip install torch"):
        agent(spaces.Discrete(2)).save(tmp_path / "agent.pth")
    assert not list(tmp_path.iterdir())


def test_the_shape_of_memory_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds: acting asks for it each time."""
    agent = PPOAgent(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2), Config())
    agent.act(np.zeros(3, np.float32))
    monkeypatch.setattr(type(agent.policy), "_start", lambda *_: pytest.fail("the networks were started anew"))
    agent.act(np.zeros(3, np.float32))
    agent.value(np.zeros(3, np.float32))


# ---- made for sizes, and named as elsewhere


@pytest.mark.slow
def test_an_agent_for_sizes_takes_vectors_and_gives_numbers() -> None:
    one = PPOAgent(observation_dim=4, action_dim=2)
    assert one.policy.observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert one.act(np.zeros(4)) in (0, 1)
    assert one.act(np.zeros((3, 4))).shape == (3,)


def test_an_agent_for_sizes_takes_over_the_spaces_of_its_environment() -> None:
    one = PPOAgent(observation_dim=3, action_dim=2)
    before = one.params
    one.fit(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))  # another size: nothing happens
    assert one.policy.observation_space.shape == (3,)
    one.fit(OBS, spaces.Discrete(2))
    assert one.policy.observation_space == OBS
    assert one.params is before
    one.fit(spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(2))  # once is enough
    assert one.policy.observation_space == OBS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "observation_dim and action_dim"),
        ({"observation_dim": 4}, "observation_dim and action_dim"),
        ({"observation_dim": 0, "action_dim": 2}, "a whole number of at least 1"),
        ({"observation_dim": 4, "action_dim": "two"}, "'two'"),
        ({"observation_space": OBS, "action_space": spaces.Discrete(2), "action_dim": 2}, "either"),
        ({"observation_space": OBS}, "action space"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_sizes_that_say_too_little_or_too_much_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        PPOAgent(**given)


def test_files_load_by_their_names_without_suffix(tmp_path: Path) -> None:
    written = agent(spaces.Discrete(3)).save_policy_net(tmp_path / "best_return_pi_ckpt")
    assert written.name == "best_return_pi_ckpt.safetensors"
    loaded = PPOAgent.load(tmp_path / "best_return_pi_ckpt")
    assert loaded.networks == ["actor"]
    with pytest.raises(UserError, match="no such file"):
        PPOAgent.load(tmp_path / "worst")


@pytest.mark.slow
def test_a_state_dict_of_pytorch_is_refused_with_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "final_actor.pth").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"PyTorch state dict.*safetensors"):
        PPOAgent.load(tmp_path / "final_actor.pth")
