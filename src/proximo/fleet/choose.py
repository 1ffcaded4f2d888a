"""The fleet that was asked for: this machine, or a cluster."""

from __future__ import annotations

from pathlib import Path

from proximo.fleet.cluster import Cluster
from proximo.fleet.cores import available_cores
from proximo.fleet.jobs import Fleet, HandedIn
from proximo.fleet.local import LOG, LocalFleet
from proximo.fleet.ray_fleet import RayFleet
from proximo.train.interrupt import Interrupt


def open_fleet(
    cluster: Cluster | None, jobs: int | None, out: Path, interrupt: Interrupt, given: HandedIn, most: int
) -> Fleet:
    """A fleet for runs below `out`, of which there are at most `most` at a time; `jobs` is what the user allows."""
    if cluster is not None:
        return RayFleet(cluster, jobs, out, interrupt, given)
    return LocalFleet(max(1, min(jobs or len(available_cores()), most)), out / LOG, interrupt, given)
