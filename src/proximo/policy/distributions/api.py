"""What every action distribution offers."""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Bool, Float, Key, Shaped

from proximo.types import PyTree

Params = Float[Array, "*B P"]
Mask: TypeAlias = PyTree[Bool[Array, "..."]]
"""[*B, ...] true for allowed actions."""
Action: TypeAlias = PyTree[Shaped[Array, "..."]]
"""[*B, ...] in the distribution's own coordinates."""


@runtime_checkable
class Distribution(Protocol):
    """What every distribution offers. `num_params` is P; the last `num_log_std` of them do not depend on the state."""

    @property
    def num_params(self) -> int: ...
    @property
    def num_log_std(self) -> int: ...
    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> PyTree[Float[Array, "..."]]: ...
    def sample(self, params: Params, noise: PyTree[Float[Array, "..."]], mask: Mask | None = None) -> Action: ...
    def mode(self, params: Params, mask: Mask | None = None) -> Action: ...
    def log_prob(self, params: Params, action: Action, mask: Mask | None = None) -> Float[Array, "*B"]: ...
    def entropy(self, params: Params, mask: Mask | None = None) -> Float[Array, "*B"]: ...
    def to_env(self, action: Action) -> PyTree[Shaped[Array, "..."]]: ...
