"""Environments that are filmed: a picture after each reset and each step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from proximo.errors import UserError


class Camera:
    """An environment, of Gymnasium or of PettingZoo, that keeps a picture of each moment until somebody takes it."""

    def __init__(self, env: Any, name: str):
        self.env = env
        self.pictures: list[NDArray[Any]] = []
        self.trouble: UserError | None = None
        """Why there is no picture; whoever steps it takes that for a failure of the environment."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.env, attribute)

    def reset(self, **given: Any) -> Any:
        answer = self.env.reset(**given)
        self._take()
        return answer

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        self._take()
        return answer

    def _take(self) -> None:
        try:
            self.pictures.append(drawn(self.env, self._name).copy())  # many draw on one canvas again and again
        except UserError as error:
            self.trouble = error
            raise


def drawn(env: Any, name: str) -> NDArray[Any]:
    """An environment's picture, or a sentence that says why there is none."""
    try:
        return picture(env.render(), name)
    except UserError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f'{name} cannot be drawn: {str(error).rstrip(".")}; pip install "proximo[video]"') from None
    except Exception as error:
        gl = "; MUJOCO_GL=egl or MUJOCO_GL=osmesa may help" if "mujoco" in type(env.unwrapped).__module__ else ""
        raise UserError(f"{name} cannot be drawn here: {type(error).__name__}: {error}{gl}.") from None


def picture(given: Any, name: str) -> NDArray[Any]:
    """What an environment drew, if it is a picture."""
    frame = np.asarray(given)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        got = "nothing" if given is None else f"{frame.dtype}{list(frame.shape)}"
        raise UserError(f"{name} cannot be drawn: its render() must give uint8 [H, W, 3], and gave {got}.")
    return frame
