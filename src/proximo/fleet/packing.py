"""What was handed in, as text: for processes that train runs and do not run the user's script."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from proximo.errors import UserError
from proximo.fleet.jobs import HandedIn


def pack(given: HandedIn, ids: Iterable[str]) -> str:
    """The environment that was handed in, or what is registered here under `ids`, maybe by the user's script; and what
    else was handed in."""
    import cloudpickle
    import gymnasium

    names = sorted(set(ids))
    registered = [gymnasium.registry[name] for name in names if name in gymnasium.registry]
    try:
        packed = cloudpickle.dumps((given.env, registered, dict(given.own)))
    except Exception as error:  # whatever the user's own code does
        raise UserError(
            f"What was handed in cannot be sent to the processes that train on {', '.join(names)} "
            f"({type(error).__name__}: {error})."
        ) from None
    return base64.b64encode(packed).decode()


def unpack(packed: str, trust: bool) -> HandedIn:
    """The other side, where the ids become known too."""
    import cloudpickle
    import gymnasium

    env, registered, own = cloudpickle.loads(base64.b64decode(packed))
    for spec in registered:
        gymnasium.registry.setdefault(spec.id, spec)
    return HandedIn(env, own, trust)
