"""Environments that can be drawn, of Gymnasium and of PettingZoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proximo.errors import UserError

PICTURES = "rgb_array"


def drawable(
    make: Callable[[Callable[[], Any]], Any],
    factory: Callable[[], Any],
    drawing: Callable[[], Any] | None,
    name: str,
) -> Any:
    """An environment, by `make`, whose `render()` gives pictures: of `drawing`, where that can; else the factory, or
    the object, of the user must see to that itself."""
    env = make(factory)
    modes = env.metadata.get("render_modes") or []
    if drawing is not None and PICTURES in modes:
        env.close()
        env = make(drawing)
    mode = getattr(env, "render_mode", None)
    if mode != PICTURES:
        env.close()
        raise UserError(
            f"{name} cannot be drawn: it was made with render_mode={mode}, not {PICTURES}; its "
            f'metadata["render_modes"] has {", ".join(map(str, modes)) or "none"}.'
        )
    return env
