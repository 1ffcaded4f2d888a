"""Tests run with what production code must not rely on switched off, and with shapes checked."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The modules of formulas: here `[B]` against `[B, 1]` is the classic silent bug.
install_import_hook(
    [
        "proximo.policy.distributions",
        "proximo.policy.normalize",
        "proximo.ppo.advantages",
        "proximo.ppo.loss",
        "proximo.ppo.optimizer",
    ],
    "beartype.beartype",
)
