"""CartPole under the name that it has in the document on the training module."""

from __future__ import annotations

from typing import Any

import gymnasium


class CartPoleWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gymnasium's CartPole-v1, cut after `max_steps` steps; as good as the id, and an environment like any other."""

    def __init__(self, max_steps: int = 500, render_mode: str | None = None):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=max_steps, render_mode=render_mode))
