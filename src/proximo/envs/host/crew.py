"""Lanes that one process steps one after the other."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from proximo.envs.host.buffers import Buffers
from proximo.envs.host.lane import Fault, Lane, LaneOptions
from proximo.envs.host.rows import Misbehaved
from proximo.envs.host.team_lane import TeamLane


def make_lane(index: int, factory: Callable[[], Any], buffers: Buffers, options: LaneOptions) -> Lane:
    """A lane for one agent or for many, as `options` say."""
    return (Lane if options.reading is None else TeamLane)(index, factory, buffers, options)


class Crew:
    """Lanes that one process steps one after the other, and the faults among them."""

    def __init__(self, lanes: list[Lane], buffers: Buffers, report: Callable[[Fault], None]):
        self.lanes = lanes
        self._report = report
        numbers = [lane.index for lane in lanes]
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        # All lanes are watched at a glance. A product with itself is finite only if every number is.
        self._watched = [
            array[numbers[0] : numbers[-1] + 1 : step] for array in buffers.obs if numbers and array.dtype.kind == "f"
        ]
        self._flat = [view.reshape(-1) for view in self._watched if view.flags.c_contiguous]
        self._scattered = [view for view in self._watched if not view.flags.c_contiguous]

    def do(self, act: Callable[[Lane], None]) -> None:
        """Do `act` for each lane; one that fails is reported, and started anew as often as that is allowed.

        When it is not, the run is over: the other lanes are not asked, which may take their time to fail too.
        """
        for lane in self.lanes:
            try:
                act(lane)
            except (Exception, SystemExit) as error:
                if not self._recover(lane, error):
                    return
        if not self._finite():
            for lane in self.lanes:
                try:
                    lane.check()
                except Misbehaved as error:
                    self._recover(lane, error)

    def ask(self, act: Callable[[Lane], Any]) -> None:
        """Do `act` for each lane, between steps; one that fails is reported, and starts anew with the next step."""
        for lane in self.lanes:
            try:
                act(lane)
            except (Exception, SystemExit) as error:
                self._report(lane.fault(error))
                lane.close()

    def _finite(self) -> bool:
        for flat in self._flat:
            if not isfinite(flat.dot(flat)):
                return False
        return not self._scattered or all(np.isfinite(view).all() for view in self._scattered)

    def _recover(self, lane: Lane, error: BaseException) -> bool:
        self._report(lane.fault(error))
        while lane.restarts < lane.options.max_restarts:
            try:
                lane.recover()
                lane.check()
                return True
            except (Exception, SystemExit) as again:
                self._report(lane.fault(again))
        return False
