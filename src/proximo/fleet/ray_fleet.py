"""Runs on a Ray cluster, each held by an actor of its own (`node.RunOnNode`), which Ray places where there is room.

The driver asks each for news about once a second, and writes what has come into the run's folder here. Ray's own
retries would begin with the arguments of the first time: a run whose node is lost is placed again by the driver, and
goes on from the checkpoint that came home.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proximo.errors import TrainingError, UserError
from proximo.fleet.cluster import Cluster, check_room, connected, in_words, room_on
from proximo.fleet.jobs import Began, Ended, Fleet, HandedIn, Job, Noted
from proximo.fleet.local import LOG
from proximo.fleet.node import SAVE_SECONDS, About, News, RunOnNode, describe_difference
from proximo.fleet.packing import pack
from proximo.fleet.shipping import read_folder, unpack
from proximo.fleet.single import let_go
from proximo.fleet.worker import describe, places
from proximo.run_dir.directory import RunDirectory, versions
from proximo.train.checkpoint import steps
from proximo.train.interrupt import Interrupt
from proximo.train.trust import vouch_for

NEWS_SECONDS = 1.0
STOP_SECONDS = 60.0
"""How long a run may take to save itself when it is stopped."""
LOSSES = 3
"""Nodes that a run may lose without having come any further."""
MOST_ASKED_FOR = 1000
"""Runs that Ray is told of at a time: those at work, and those that wait for room."""


class SetUpError(UserError):
    """The cluster is not fit for any run."""


@dataclass(eq=False)
class Remote:
    """A run that Ray was asked for."""

    job: Job
    actor: Any
    answer: Any
    """What it was asked last, and has not said yet; None between two questions."""
    directory: RunDirectory | None = None
    """The folder here, which belongs to this process while the run is elsewhere."""
    began: bool = False
    started: bool = False
    node: str = ""
    received: int = 0
    ask_at: float = 0.0
    stopped_at: float | None = None
    furthest: int = -1
    """The step of the last checkpoint that came home when a node was lost."""
    losses: int = 0
    """Nodes that were lost since then."""


class RayFleet(Fleet):
    """Trains runs on a cluster: as many at a time as Ray has room for, and at most `jobs` if that is given. `out` is
    the folder above those of the runs."""

    def __init__(self, cluster: Cluster, jobs: int | None, out: Path, interrupt: Interrupt, given: HandedIn):
        super().__init__(interrupt)
        self._cluster, self._jobs, self._out, self._given = cluster, jobs, out, given
        self._waiting: list[Job] = []
        self._remotes: dict[Job, Remote] = {}
        self._leaving: list[tuple[Any, Any]] = []
        self._told_ends: list[Began | Noted | Ended] = []
        self._packed: dict[str, str] = {}
        self._saves = interrupt.saves
        self._here = versions()
        self._ray: Any = None
        self._token = out / f".shared-{uuid.uuid4().hex}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RayFleet:
        with contextlib.ExitStack() as stack:
            self._ray = stack.enter_context(connected(self._cluster))
            check_room(self._ray.nodes(), self._cluster)
            if self._cluster.shared:
                self._token.touch()
                stack.callback(self._token.unlink, missing_ok=True)
            self._stack = stack.pop_all()
        options = {"num_cpus": self._cluster.cpus_per_run, "num_gpus": self._cluster.gpus_per_run}
        self._actors = self._ray.remote(RunOnNode).options(**options, max_restarts=0, scheduling_strategy="SPREAD")
        return self

    @property
    def count(self) -> int:
        """How many runs there is room for now."""
        room = sum(room_on(node, self._cluster) for node in self._ray.nodes())
        return min(room, self._jobs or room)

    def submit(self, job: Job) -> None:
        name = job.config.env.id
        if name not in self._packed:
            self._packed[name] = pack(self._given, [name])
        self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
            self._told_ends.append(Ended(job, "interrupted"))
        elif (remote := self._remotes.get(job)) and remote.stopped_at is None:
            if not remote.started:
                self._told_ends.append(Ended(job, "interrupted"))
                self._forget(remote)
                return
            remote.stopped_at = time.monotonic()
            remote.actor.stop.remote()

    def close(self, wait: bool = True) -> None:
        self._waiting.clear()
        for job in list(self._remotes):
            self.cancel(job)
        try:
            while wait and self._remotes:
                self._news(NEWS_SECONDS)
            answers = [answer for _, answer in self._leaving]
            if wait and answers:
                self._ray.wait(answers, num_returns=len(answers), timeout=STOP_SECONDS)
        finally:
            for remote in list(self._remotes.values()):
                self._forget(remote)
            self._leaving.clear()
            self._stack.close()

    @property
    def _lost(self) -> tuple[type[Exception], ...]:
        """What Ray raises when an actor, or all of it, is gone."""
        errors = self._ray.exceptions
        return errors.RayActorError, errors.RaySystemError, errors.ObjectLostError, errors.LocalRayletDiedError

    def _busy(self) -> bool:
        if self._interrupt.signal is not None:
            self._waiting.clear()
            for remote in list(self._remotes.values()):
                if remote.began:
                    self.cancel(remote.job)
                else:
                    self._forget(remote)
        return bool(self._waiting or self._remotes or self._told_ends)

    def _news(self, seconds: float) -> list[Began | Noted | Ended]:
        told, self._told_ends = self._told_ends, []
        self._ask()
        asked = {remote.answer: remote for remote in self._remotes.values() if remote.answer is not None}
        if asked:
            ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=0 if told else seconds)
            more, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for answer in dict.fromkeys([*ready, *more]):
                told += self._hear(asked[answer])
        elif not told:
            time.sleep(seconds)
        told += [event for remote in list(self._remotes.values()) for event in self._overdue(remote)]
        self._leaving = [one for one in self._leaving if not self._ray.wait([one[1]], timeout=0)[0]]
        return told

    def _ask(self) -> None:
        """Ask Ray for room for those that wait, and those that are at work for news."""
        most = min(self._jobs or MOST_ASKED_FOR, MOST_ASKED_FOR)
        while self._waiting and len(self._remotes) < most:
            job = self._waiting.pop(0)
            self._remotes[job] = self._place(Remote(job, None, None))
        saves, self._saves = self._interrupt.saves - self._saves, self._interrupt.saves
        for remote in self._remotes.values():
            if saves and remote.started:
                remote.actor.save.remote()
            if remote.answer is None and time.monotonic() >= remote.ask_at:
                remote.answer = remote.actor.news.remote(remote.received)

    def _place(self, remote: Remote) -> Remote:
        remote.actor = self._actors.remote()
        remote.answer = remote.actor.about.remote(str(self._token))
        remote.started, remote.received = False, 0
        return remote

    def _hear(self, remote: Remote) -> list[Began | Noted | Ended]:
        """What the answer says."""
        try:
            answer, remote.answer = self._ray.get(remote.answer), None
            if isinstance(answer, About):
                return self._start(remote, answer)
            return self._take(remote, answer) if isinstance(answer, News) else []
        except self._lost as error:
            return self._lose(remote, error)
        except self._ray.exceptions.RuntimeEnvSetupError as error:
            raise SetUpError(f"The cluster cannot set up what --runtime-env asks for: {in_words(error)}") from None
        except self._ray.exceptions.RayError as error:
            return self._end(remote, Ended(remote.job, "failed", f"The node {remote.node}: {in_words(error)}"))
        except SetUpError:
            raise
        except (UserError, TrainingError) as error:
            return self._end(remote, Ended(remote.job, "failed", str(error)))
        except OSError as error:
            words = f"Cannot write to {remote.job.folder}: {error.strerror or error}."
            return self._end(remote, Ended(remote.job, "failed", words))

    def _start(self, remote: Remote, about: About) -> list[Began | Noted | Ended]:
        """There is room on a node: send the run there."""
        job, remote.node = remote.job, about.name
        if self._cluster.shared and not about.sees:
            raise SetUpError(
                f"--shared was given, but the node {about.name} does not see {self._out}; leave --shared out, and "
                f"files are sent over the network."
            )
        files = None
        if not self._cluster.shared:
            if remote.directory is None:
                let_go(job.folder)
                remote.directory = RunDirectory.reopen(job.folder, 0)
                vouch_for(job.folder, [job.config.env])  # a node would sign with a key of its own
            files = read_folder(job.folder)
        told = describe(job.config, job.folder, self._packed[job.config.env.id], trust=True)  # whom we trust is settled
        every = job.config.checkpoint.every_seconds
        save = every is None or every > SAVE_SECONDS
        remote.answer = remote.actor.start.remote(told, files, self._cluster.cpus_per_run, places(), save)
        difference = describe_difference(self._here, about.versions)
        news: list[Began | Noted | Ended] = [] if remote.began else [Began(job)]
        remote.began = remote.started = True
        if difference:
            news.append(Noted(job, f"The node {about.name} has {difference}; its numbers may differ in the last bits."))
        return news

    def _take(self, remote: Remote, news: News) -> list[Began | Noted | Ended]:
        remote.ask_at = time.monotonic() + NEWS_SECONDS
        if news.parcel is not None:
            assert remote.directory is not None
            unpack(news.parcel, remote.directory)
            remote.received = news.parcel.number
        told: list[Began | Noted | Ended] = [Noted(remote.job, sentence) for sentence in news.notes]
        if news.end is None:
            return told
        if news.log:
            with (self._out / LOG).open("a", encoding="utf-8") as file:
                file.write(f"== {remote.job.folder.name}, on {remote.node} ==\n{news.log}")
        stopped = news.end["end"] == "failed" and remote.stopped_at is not None
        ended = Ended(remote.job, "interrupted") if stopped else Ended(remote.job, **news.end)
        return told + self._end(remote, ended)

    def _lose(self, remote: Remote, error: Exception) -> list[Began | Noted | Ended]:
        """Its actor is gone: take the run up again elsewhere, unless that was in vain before."""
        words = in_words(error)
        if "ModuleNotFoundError" in words or "ImportError" in words:
            raise SetUpError(
                f"A node of the cluster lacks a package ({words}); install it there, or have --runtime-env bring it."
            )
        reached = max(steps(remote.job.folder), default=-1)
        remote.losses = 1 if reached > remote.furthest else remote.losses + 1
        remote.furthest = max(reached, remote.furthest)
        if remote.stopped_at is not None:
            return self._end(remote, Ended(remote.job, "interrupted"))
        if remote.losses > LOSSES:
            lost = f"It lost {remote.losses} nodes without having come any further: {words}"
            return self._end(remote, Ended(remote.job, "failed", lost))
        news: list[Began | Noted | Ended] = []
        if remote.started:
            sentence = f"The node {remote.node} was lost, and the run goes on elsewhere from what came home."
            wait = "" if self.count else " No node has room for it: it waits for one."
            news = [Noted(remote.job, sentence + wait)]
        self._ray.kill(remote.actor)  # it may only be out of reach
        self._place(remote)
        return news

    def _overdue(self, remote: Remote) -> list[Began | Noted | Ended]:
        """One that was stopped, and whose node does not answer any more."""
        if remote.stopped_at is None or time.monotonic() - remote.stopped_at < STOP_SECONDS:
            return []
        self._forget(remote)
        return [Ended(remote.job, "interrupted")]

    def _end(self, remote: Remote, ended: Ended) -> list[Began | Noted | Ended]:
        self._leaving.append((remote.actor, remote.actor.leave.remote()))
        self._let_go_of(remote)
        return [ended]

    def _forget(self, remote: Remote) -> None:
        self._ray.kill(remote.actor)
        self._let_go_of(remote)

    def _let_go_of(self, remote: Remote) -> None:
        if remote.directory is not None:
            remote.directory.close()
        del self._remotes[remote.job]
