"""The built-in networks, as the settings want them."""

from __future__ import annotations

from proximo.config import NetworkConfig
from proximo.policy.networks import CRITIC_HEAD, Head, Layers, Network, actor_head, linen_network
from proximo.policy.recurrent import remembering


def build_networks(network: NetworkConfig, num_outputs: int, num_log_std: int) -> dict[str, Network]:
    """Actor and critic, each whole; or, with a shared torso, that and their heads.

    Memory comes after the hidden layers. Of the actor's `num_outputs` numbers the last `num_log_std` are parameters.
    """
    heads = {"actor": actor_head(network, num_outputs, num_log_std), "critic": CRITIC_HEAD}
    if network.torso == "separate":
        return {name: _whole(network, head) for name, head in heads.items()}
    return {"torso": _whole(network, None)} | {name: linen_network(Layers(None, head)) for name, head in heads.items()}


def _whole(network: NetworkConfig, head: Head | None) -> Network:
    if network.memory == "none":
        return linen_network(Layers(network, head))
    after = None if head is None else linen_network(Layers(None, head))
    return remembering(linen_network(Layers(network, None)), network.memory, network.memory_size, after)
