"""The preset that fits: an environment's own is for the spaces that it has without arguments and wrappers."""

from __future__ import annotations

from typing import Any

from proximo.errors import UserError, quoted
from proximo.presets import choose_preset
from proximo.settings import Values

KINDS = ("observation_space", "action_space")


def fitting_preset(which: bool | str, env_id: str, given: Values, handed_in: Any = None) -> tuple[Values, str | None]:
    """The values to start from, as `choose_preset` has them, where the user has `given` other settings; and a sentence
    if the environment's own preset does not fit what `env.kwargs` and `env.wrappers` make of it. `handed_in` is that
    environment, where it was made already."""
    tuned = choose_preset(which, env_id)
    kwargs, wrappers = given.get("env.kwargs"), given.get("env.wrappers", ())
    if which is not True or not tuned or not (kwargs or wrappers):
        return tuned, None
    from proximo import envs  # JAX loads here, only where it has to
    from proximo.spaces import space_key

    now = (envs.make(env_id, kwargs, wrappers) if handed_in is None else handed_in).spec
    try:
        plain = envs.make(env_id).spec
    except UserError:
        return {}, f"The preset for {env_id} is not used: whether it fits env.kwargs and env.wrappers cannot be told."
    for kind in KINDS:
        ours, theirs = getattr(plain, kind), getattr(now, kind)
        if space_key(ours) is None or space_key(ours) != space_key(theirs):
            what = kind.replace("_", " ")
            return {}, (
                f"The preset for {env_id} is not used: it is for the {what} {_shown(ours)}, and with env.kwargs and "
                f"env.wrappers that is {_shown(theirs)}."
            )
    return tuned, None


def _shown(space: Any) -> str:
    return quoted(space).strip("'")
