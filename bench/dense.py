"""Why layers multiply through `product`: `python bench/dense.py`.

The gradient of a linear layer inside a compiled loop, as JAX has it and through `networks.product`, for the shapes of a
minibatch of 256 in a 64-64 network; by turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from proximo.policy.layers import product

LOOPS = 200
REPEATS = 9


def descent(multiply: Callable[[jax.Array, jax.Array], jax.Array], inputs: int, outputs: int) -> Callable[[], float]:
    """Compile LOOPS gradient steps of one layer; a call runs them and returns the microseconds of one."""
    x = jax.random.normal(jax.random.key(0), (256, inputs))
    kernel = jax.random.normal(jax.random.key(1), (inputs, outputs))

    def step(kernel: jax.Array, _: None) -> tuple[jax.Array, None]:
        return kernel - 1e-6 * jax.grad(lambda k: jnp.square(multiply(x, k)).sum())(kernel), None

    run = jax.jit(lambda kernel: jax.lax.scan(step, kernel, None, LOOPS)[0]).lower(kernel).compile()

    def microseconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(kernel))
        return (time.perf_counter() - start) / LOOPS * 1e6

    return microseconds


def main() -> None:
    for inputs, outputs in ((64, 64), (64, 2), (4, 64)):
        contestants = {"@": descent(jnp.matmul, inputs, outputs), "product": descent(product, inputs, outputs)}
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(REPEATS):
            for name, microseconds in contestants.items():
                times[name].append(microseconds())
        plain, ours = (statistics.median(values) for values in times.values())
        print(f"256x{inputs} by {inputs}x{outputs}: @ {plain:.1f} us, product {ours:.1f} us, ratio {plain / ours:.2f}")


if __name__ == "__main__":
    main()
