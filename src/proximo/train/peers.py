"""Several processes of one run. Each has some of its shards, and all do the same: they make the same updates, play the
same evaluations and come to the same decisions, since all they look at is the same. What may differ from one process to
another, which are signals and clocks, they tell each other before each call of the program."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8
from numpy.typing import NDArray

from proximo.compile import prepare_backend
from proximo.errors import TrainingError, UserError
from proximo.ppo.types import TrainState
from proximo.shards import DIVIDED, SAME, divided, local, own_shards, side_by_side, spread
from proximo.train.program import ProgramState
from proximo.types import PyTree

JOIN_SECONDS = 60
"""How long processes wait for the others to come."""
END_SECONDS = 600
"""How long one that is done waits for the first, which draws pictures."""
PEER_SECONDS = 30
"""How long they wait for a sign of life of one that came."""


class Peer(NamedTuple):
    """One of the processes of a run."""

    coordinator: str
    """HOST:PORT at which process 0 can be reached."""
    process: int
    processes: int


def join(peer: Peer, shards: int) -> None:
    """Become one of the processes that have `shards` devices together; before anything uses JAX."""
    prepare_backend()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", shards // peer.processes)
    try:
        jax.distributed.initialize(
            peer.coordinator,
            num_processes=peer.processes,
            process_id=peer.process,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=PEER_SECONDS,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"Process {peer.process} of {peer.processes} did not meet the others at {peer.coordinator} within "
            f"{JOIN_SECONDS} s ({reason})."
        ) from None
    jax.devices()  # from here on their number stands


def several() -> bool:
    """Whether this process is one of several of its run."""
    return int(jax.process_count()) > 1


def leads() -> bool:
    """Whether it is the one that writes."""
    return int(jax.process_index()) == 0


def told_by_all(values: Sequence[int], shards: int) -> Int[NDArray[Any], "P N"]:
    """What each process says, by process; each says as many numbers."""
    own = len(own_shards(shards))
    rows = np.broadcast_to(np.array(values, np.int32), (own, len(values)))
    return np.asarray(_together(rows, shards))[::own]


def check_alike(train: TrainState, shards: int) -> None:
    """End the run if processes do not hold the same parameters to the bit."""
    own = 0
    for leaf in jax.tree.leaves(local(train.of("params"))):
        own = zlib.crc32(np.asarray(leaf).tobytes(), own)
    found = told_by_all([own & 0x7FFFFFFF], shards)[:, 0]
    if (found != found[0]).any():
        other = int(np.flatnonzero(found != found[0])[0])
        raise TrainingError(
            f"After {int(train.update):,} updates process {other} holds other parameters than process 0, so training "
            f"stopped: their processors, or their versions of JAX, do not compute the same bits. Use alike machines."
        )


def whole_state(state: ProgramState, shards: int) -> ProgramState:
    """All of a state, in every process."""
    if not several():
        return state
    lanes, runner = _unkeyed((state.lanes, state.runner))
    return ProgramState(local(state.train), *local(_gather(shards)((lanes, runner))))


def all_envs(states: list[bytes] | None, shards: int) -> list[bytes] | None:
    """Where the environments of all processes stand; None if that is not known of one."""
    if not several():
        return states
    known, longest = told_by_all([states is not None, sum(map(len, states or []))], shards).T
    if states is None or not known.all():
        return None
    sizes = told_by_all(list(map(len, states)), shards)
    room = np.zeros((len(own_shards(shards)), longest.max()), np.uint8)
    flat = np.frombuffer(b"".join(states), np.uint8)
    room[0, : flat.size] = flat
    rows: UInt8[NDArray[Any], "P N"] = np.asarray(_together(room, shards))[:: room.shape[0]]
    found = []
    for row, own in zip(rows, sizes, strict=True):
        ends = np.cumsum(own)
        found += [row[end - size : end].tobytes() for end, size in zip(ends, own, strict=True)]
    return found


def _together(rows: NDArray[Any], shards: int) -> Any:
    return local(_gather(shards)(spread(rows, shards, DIVIDED)))


@cache
def _gather(shards: int) -> Any:
    return jax.jit(divided(side_by_side, shards, DIVIDED, SAME))


def _unkeyed(tree: PyTree) -> PyTree:
    """Random keys as their numbers, as files have them."""

    def plain(leaf: Any) -> Any:
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return jax.tree.map(plain, tree)
