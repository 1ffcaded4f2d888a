"""Runs side by side on this machine.

There are as many slots as runs are trained at a time. A slot is a thread. Environments written in JAX leave the
interpreter alone, so their runs are trained in these threads, and those that differ in numbers and seeds alone share
one compiled program. Other environments hold the interpreter: each slot has a process for them, with its share of the
cores.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from proximo import envs
from proximo.compile import prepare_backend
from proximo.config import Config
from proximo.envs.arguments import env_key
from proximo.envs.grouping import with_groups
from proximo.envs.keys import same_for_all
from proximo.fleet.cores import available_cores
from proximo.fleet.jobs import Began, Ended, Fleet, HandedIn, Job, Noted
from proximo.fleet.packing import pack
from proximo.fleet.single import attempt
from proximo.fleet.worker import Message, Worker, describe
from proximo.ppo.static_config import split_static
from proximo.train.interrupt import Interrupt
from proximo.train.program import settled

LOG = "workers.log"
NEWS_SECONDS = 0.02
"""What happens at the same time is told at the same time."""


def find_compiled(configs: Iterable[Config], given: HandedIn) -> set[str]:
    """The ids of the environments that are written in JAX. What cannot be made, and settings that do not fit, are
    refused here, before anything is trained."""
    prepare_backend()
    made: dict[str, envs.JaxEnv | envs.HostSource] = {}
    compiled: set[str] = set()
    for config in configs:
        key = env_key(config.env)
        if key not in made:
            made[key] = envs.make_configured(config.env, given.env)
        settled(config, with_groups(made[key], config.agents).spec.groups)
        if not isinstance(made[key], envs.HostSource):
            compiled.add(config.env.id)
    return compiled


def shape_of(config: Config) -> Hashable:
    """What runs must have in common to share a program."""
    return env_key(config.env), split_static(config)[0]


class LocalFleet(Fleet):
    """Trains runs in `count` slots; each takes the next that suits it. What processes print goes to `log`."""

    def __init__(self, count: int, log: Path, interrupt: Interrupt, given: HandedIn, cores: list[int] | None = None):
        super().__init__(interrupt)
        self._count, self._log, self._given = count, log, given
        self._cores = cores or available_cores()
        self._waiting: list[Job] = []
        self._told: dict[Job, Interrupt] = {}
        self._packed: dict[str, str] = {}
        self._shapes: dict[Job, Hashable] = {}
        self._at_work_on: Counter[Hashable] = Counter()
        self._happened: queue.SimpleQueue[Began | Noted | Ended] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._closed = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> LocalFleet:
        self._stack.enter_context(same_for_all(self._given.env))
        return self

    @property
    def count(self) -> int:
        return self._count

    def submit(self, job: Job) -> None:
        shape, name = shape_of(job.config), job.config.env.id
        if not job.compiled and name not in self._packed:
            self._packed[name] = pack(self._given, [name])
        with self._changed:
            self._shapes[job] = shape
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._told[job] = Interrupt(deaf=True)  # until its end is told
                self._happened.put(Ended(job, "interrupted"))
            elif job in self._told:
                self._told[job].end(signal.SIGTERM)

    def close(self, wait: bool = True) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            for told in self._told.values():
                told.end(signal.SIGTERM)
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            while thread.is_alive():
                thread.join(0.2)  # in pieces, so that signals are heard
        self._stack.close()

    def _busy(self) -> bool:
        with self._changed:
            return bool(self._told) or (bool(self._waiting) and self._interrupt.signal is None)

    def _news(self, seconds: float) -> list[Began | Noted | Ended]:
        while len(self._threads) < min(self._count, len(self._waiting) + len(self._told)):
            self._threads.append(threading.Thread(target=self._work, args=[len(self._threads)], daemon=True))
            self._threads[-1].start()
        found: list[Began | Noted | Ended] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._happened.get(timeout=seconds))
            while True:
                found.append(self._happened.get(timeout=NEWS_SECONDS))
        for event in found:
            if isinstance(event, Ended):
                self._told.pop(event.job, None)
        return found

    def _work(self, slot: int) -> None:
        worker = WorkerOfSlot(self._share(slot), self._log)
        job: Job | None = None
        with contextlib.closing(worker):
            while (job := self._take(job)) is not None:
                with self._told[job] as told:
                    self._happened.put(Began(job))
                    ended = self._train(job, worker, told)
                with self._changed:
                    self._at_work_on[self._shapes[job]] -= 1
                self._happened.put(ended)

    def _train(self, job: Job, worker: WorkerOfSlot, told: Interrupt) -> Ended:
        """Train one run, here or in the slot's process."""

        def note(sentence: str) -> None:
            self._happened.put(Noted(job, sentence))

        if job.compiled:
            return Ended(job, **attempt(job.config, job.folder, self._given, note))
        packed = self._packed[job.config.env.id]
        end = worker.run(describe(job.config, job.folder, packed, self._given.trust), note, told)
        stopped = end["end"] == "failed" and told.signal is not None
        return Ended(job, "interrupted") if stopped else Ended(job, **end)

    def _take(self, last: Job | None) -> Job | None:
        """The next job, as soon as there is one: of those whose program is there already, else of the kind with most
        jobs left for each slot. None at the end."""
        with self._changed:
            while not self._closed and self._interrupt.signal is None:
                if self._waiting:
                    job = self._choose(None if last is None else self._shapes[last])
                    self._told[job] = Interrupt(deaf=True)
                    return job
                self._changed.wait(0.2)
            return None

    def _choose(self, last: Hashable) -> Job:
        left = Counter(self._shapes[job] for job in self._waiting)
        best = last if left[last] else max(left, key=lambda shape: left[shape] / (1 + self._at_work_on[shape]))
        job = next(job for job in self._waiting if self._shapes[job] == best)
        self._waiting.remove(job)
        self._at_work_on[best] += 1
        return job

    def _share(self, slot: int) -> list[int]:
        """The cores of a slot's process."""
        count, cores = self._count, self._cores
        if count >= len(cores):
            return [cores[slot % len(cores)]]
        return cores[slot * len(cores) // count : (slot + 1) * len(cores) // count]


class WorkerOfSlot:
    """The process of a slot, which is started when there is something for it, and again if it has died."""

    def __init__(self, cores: list[int], log: Path):
        self._cores, self._log = cores, log
        self._worker: Worker | None = None

    def run(self, job: Message, note: Callable[[str], None], told: Interrupt) -> Message:
        if self._worker is None or not self._worker.alive:
            self.close()
            try:
                self._worker = Worker(self._cores, self._log)
            except OSError as error:
                return {"end": "failed", "sentence": f"No process could be started for it: {error.strerror}."}
        return self._worker.run(job, note, told)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
