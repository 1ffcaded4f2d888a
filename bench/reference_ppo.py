"""PPO in one file and one jitted function: what Proximo's compiled training is measured against.

A plain implementation for gymnax environments with discrete actions, as a researcher would write it in an
afternoon: every loop is a `lax.scan`, the networks are Linen modules, the optimizer is Optax. It has no settings
beyond its arguments, no reports while it runs, no checkpoints. An episode that is cut at its time limit is
treated as ended, the usual shortcut.

    train = make_train("CartPole-v1", num_envs=8, rollout_length=128, epochs=4, num_minibatches=4, total_steps=500_000)
    metrics = train(jax.random.key(0))   # each entry [num_updates]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

GAMMA = 0.99
GAE_LAMBDA = 0.95
CLIP_EPSILON = 0.2
VALUE_COEF = 0.5
ENTROPY_COEF = 0.01
MAX_GRAD_NORM = 0.5
LEARNING_RATE = 3e-4


class ActorCritic(nn.Module):
    """Two tanh MLPs of 64-64: logits [..., A] and value [...]."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = mlp(obs, self.num_actions, head_gain=0.01)
        value = mlp(obs, 1, head_gain=1.0)
        return logits, value.squeeze(-1)


def mlp(x: jax.Array, num_outputs: int, head_gain: float) -> jax.Array:
    for _ in range(2):
        x = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
    return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(head_gain))(x)


class Transition(NamedTuple):
    """One step of every environment; [T, L, ...] once collected."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array
    episode_return: jax.Array  # of the episode so far; whole where done


class Minibatch(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array


class Runner(NamedTuple):
    """What one update hands to the next."""

    train: TrainState
    env_state: Any
    obs: jax.Array
    episode_return: jax.Array
    key: jax.Array


def make_train(
    env_id: str, num_envs: int, rollout_length: int, epochs: int, num_minibatches: int, total_steps: int
) -> jax.stages.Wrapped:
    """The whole training as one jitted function of a random key; it returns metrics, each [num_updates]."""
    env, env_params = gymnax.make(env_id)
    network = ActorCritic(env.action_space(env_params).n)
    batch_size = num_envs * rollout_length
    num_updates = -(-total_steps // batch_size)

    def outputs(params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        found: Any = network.apply(params, obs)
        logits, value = found
        return logits, value

    def env_step(runner: Runner, _: None) -> tuple[Runner, Transition]:
        key, action_key, step_key = jax.random.split(runner.key, 3)
        logits, value = outputs(runner.train.params, runner.obs)
        action = jax.random.categorical(action_key, logits)
        log_prob = log_prob_of(logits, action)
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(step_key, num_envs), runner.env_state, action, env_params
        )
        done = terminated | truncated
        episode_return = runner.episode_return + reward
        transition = Transition(runner.obs, action, log_prob, value, reward, done, episode_return)
        return Runner(runner.train, env_state, obs, jnp.where(done, 0.0, episode_return), key), transition

    def loss(params: Any, batch: Minibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits, value = outputs(params, batch.obs)
        ratio = jnp.exp(log_prob_of(logits, batch.action) - batch.log_prob)
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - CLIP_EPSILON, 1 + CLIP_EPSILON)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = jnp.square(value - batch.target).mean()
        log_probs = jax.nn.log_softmax(logits)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        total = policy_loss + VALUE_COEF * value_loss - ENTROPY_COEF * entropy
        return total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def gradient_step(train: TrainState, batch: Minibatch) -> tuple[TrainState, dict[str, jax.Array]]:
        gradients, metrics = jax.grad(loss, has_aux=True)(train.params, batch)
        return train.apply_gradients(grads=gradients), metrics

    def update(runner: Runner, _step: None) -> tuple[Runner, dict[str, jax.Array]]:
        runner, rollout = jax.lax.scan(env_step, runner, None, length=rollout_length)
        _, last_value = outputs(runner.train.params, runner.obs)
        advantage = advantages(rollout, last_value)
        batch = Minibatch(rollout.obs, rollout.action, rollout.log_prob, advantage, advantage + rollout.value)
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), batch)

        def epoch(train: TrainState, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
            order = jax.random.permutation(key, batch_size)
            minibatches = jax.tree.map(lambda x: x[order].reshape(num_minibatches, -1, *x.shape[1:]), flat)
            return jax.lax.scan(gradient_step, train, minibatches)

        key, shuffle_key = jax.random.split(runner.key)
        train, metrics = jax.lax.scan(epoch, runner.train, jax.random.split(shuffle_key, epochs))
        metrics = jax.tree.map(jnp.mean, metrics)
        finished = jnp.maximum(rollout.done.sum(), 1)
        metrics["episode_return"] = jnp.where(rollout.done, rollout.episode_return, 0.0).sum() / finished
        metrics["episodes"] = rollout.done.sum()
        return runner._replace(train=train, key=key), metrics

    @jax.jit
    def train(key: jax.Array) -> dict[str, jax.Array]:
        key, init_key, reset_key = jax.random.split(key, 3)
        obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), env_params)
        optimizer = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(LEARNING_RATE, eps=1e-5))
        state = TrainState.create(apply_fn=network.apply, params=network.init(init_key, obs), tx=optimizer)
        runner = Runner(state, env_state, obs, jnp.zeros(num_envs), key)
        return jax.lax.scan(update, runner, None, length=num_updates)[1]

    return train


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=-1)[:, 0]


def advantages(rollout: Transition, last_value: jax.Array) -> jax.Array:
    """Generalised advantage estimation, backwards in time."""

    def step(following: tuple[jax.Array, jax.Array], now: Transition) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = following
        alive = 1.0 - now.done
        delta = now.reward + GAMMA * next_value * alive - now.value
        advantage = delta + GAMMA * GAE_LAMBDA * alive * advantage
        return (advantage, now.value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(step, start, rollout, reverse=True)[1]
