"""Environments that one process steps one after the other."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from proximo.envs.host.shared_memory import Buffers
from proximo.envs.host.slot import Fault, Slot, SlotOptions
from proximo.envs.host.team_slot import TeamSlot
from proximo.envs.host.transfer import EnvContractError


def make_slot(index: int, factory: Callable[[], Any], buffers: Buffers, options: SlotOptions) -> Slot:
    """A slot for an environment of one agent or of many, as `options` say."""
    return (Slot if options.agent_layout is None else TeamSlot)(index, factory, buffers, options)


class SlotGroup:
    """Slots that one process steps one after the other, and the faults among them."""

    def __init__(self, slots: list[Slot], buffers: Buffers, report: Callable[[Fault], None]):
        self.slots = slots
        self._report = report
        numbers = [slot.index for slot in slots]
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        # All environments are watched at a glance. A product with itself is finite only if every number is.
        watched = [array for array in buffers.observed if numbers and array.dtype.kind == "f"]
        self._watched = [array[numbers[0] : numbers[-1] + 1 : step] for array in watched]
        self._flat = [view.reshape(-1) for view in self._watched if view.flags.c_contiguous]
        self._scattered = [view for view in self._watched if not view.flags.c_contiguous]

    def do(self, act: Callable[[Slot], None]) -> None:
        """Do `act` for each slot; one that fails is reported, and started anew as often as that is allowed.

        When it is not, the run is over: the others are not asked, which may take their time to fail too.
        """
        for slot in self.slots:
            try:
                act(slot)
            except (Exception, SystemExit) as error:
                if not self._recover(slot, error):
                    return
        if not self._finite():
            for slot in self.slots:
                try:
                    slot.check()
                except EnvContractError as error:
                    self._recover(slot, error)

    def ask(self, act: Callable[[Slot], Any]) -> None:
        """Do `act` for each slot, between steps; one that fails is reported, and starts anew with the next step."""
        for slot in self.slots:
            try:
                act(slot)
            except (Exception, SystemExit) as error:
                self._report(slot.fault(error))
                slot.close()

    def _finite(self) -> bool:
        for flat in self._flat:
            if not isfinite(flat.dot(flat)):
                return False
        return not self._scattered or all(np.isfinite(view).all() for view in self._scattered)

    def _recover(self, slot: Slot, error: BaseException) -> bool:
        self._report(slot.fault(error))
        while slot.restarts < slot.options.max_restarts:
            try:
                slot.recover()
                slot.check()
                return True
            except (Exception, SystemExit) as again:
                self._report(slot.fault(again))
        return False
