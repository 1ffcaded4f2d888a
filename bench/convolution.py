"""Why images go through `PatchConv`: `python bench/convolution.py`.

The gradient of a 3x3 convolution with 16 filters over 256 MinAtar images, inside a compiled loop as in an update, as
Flax's `nn.Conv` and as `PatchConv`; by turns, so that whatever else the machine does falls on both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from proximo.policy.encoders import PatchConv

LOOPS = 20
REPEATS = 7


def descent(layer: nn.Module) -> Callable[[], float]:
    """Compile LOOPS gradient steps through `layer`; a call runs them and returns the milliseconds of one."""
    images = jax.random.normal(jax.random.key(0), (256, 10, 10, 4))
    params = layer.init(jax.random.key(1), images)

    def loss(params: Any, images: jax.Array) -> jax.Array:
        outputs: Any = layer.apply(params, images)
        return jnp.square(outputs).mean()

    def step(params: Any, _: None) -> tuple[Any, None]:
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params, images)), None

    run = jax.jit(lambda params: jax.lax.scan(step, params, None, LOOPS)[0]).lower(params).compile()

    def milliseconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(params))
        return (time.perf_counter() - start) / LOOPS * 1000

    return milliseconds


def main() -> None:
    contestants = {"nn.Conv": descent(nn.Conv(16, (3, 3), padding="VALID")), "PatchConv": descent(PatchConv(16, 3, 1))}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(REPEATS):
        for name, milliseconds in contestants.items():
            times[name].append(milliseconds())
    for name, values in times.items():
        print(f"{name:<12}{statistics.median(values):8.2f} ms for one gradient")
    print(f"nn.Conv / PatchConv: {statistics.median(times['nn.Conv']) / statistics.median(times['PatchConv']):.1f}")


if __name__ == "__main__":
    main()
