"""What the driver makes of what nodes say, and of those that say nothing more. Ray itself is in `test_cluster.py`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proximo import settings
from proximo.errors import UserError
from proximo.fleet import ray_fleet
from proximo.fleet.cluster import Cluster
from proximo.fleet.jobs import Began, Ended, Event, HandedIn, Job, Noted
from proximo.fleet.node import About, News
from proximo.fleet.ray_fleet import RayFleet
from proximo.fleet.shipping import Parcel
from proximo.run_dir.directory import versions
from proximo.run_dir.read import is_running
from proximo.train.interrupt import Interrupt


class RayError(Exception):
    pass


class Lost(RayError):
    pass


class SetUpFailed(RayError):
    pass


class Answer:
    def __init__(self, value: Any):
        self.value = value


class Scripted:
    """Ray, with actors that answer what a test says: `answers` in their order, but for `leave` and `stop`, which are
    only counted. What is None is never answered."""

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayActorError=Lost,
        RaySystemError=Lost,
        ObjectLostError=Lost,
        LocalRayletDiedError=Lost,
        RuntimeEnvSetupError=SetUpFailed,
    )

    def __init__(self, *answers: Any):
        self.answers = list(answers)
        self.called: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}]

    def remote(self, kind: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: self))

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Answer:
            self.called.append(name)
            return Answer(self.answers.pop(0) if name in ("about", "start", "news") else True)

        return SimpleNamespace(remote=call)

    def wait(
        self, answers: list[Answer], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[Answer], list[Answer]]:
        return [one for one in answers if one.value is not None], []

    def get(self, answer: Answer) -> Any:
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def kill(self, actor: Any) -> None:
        self.called.append("kill")


HERE = About("n1", versions(), sees=False)
ENDED = News(
    Parcel(1, 0, b'{"step": 1}\n', {"config.yaml": b"x"}), ["a note"], {"end": "complete", "seconds": 2.0}, "hm"
)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Event]]:
    monkeypatch.setattr(ray_fleet, "NEWS_SECONDS", 0.0)

    def call(ray: Scripted, shared: bool = False, heard: Callable[[Event], None] = lambda event: None) -> list[Event]:
        @contextlib.contextmanager
        def connected(_: Cluster) -> Iterator[Scripted]:
            yield ray

        monkeypatch.setattr(ray_fleet, "connected", connected)
        config = settings.build({"env.id": "gymnax/CartPole-v1"})
        events: list[Event] = []
        where = Cluster("auto", shared=shared)
        with RayFleet(where, None, tmp_path, Interrupt(deaf=True), HandedIn()) as fleet:
            job = Job(config, tmp_path / "runs" / "one", True)
            fleet.submit(job)
            for event in fleet.events():
                events.append(event)
                heard(event)
                if isinstance(event, Noted) and event.sentence == "stop it":
                    fleet.cancel(job)
        return events

    return call


def ends(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.end, event.sentence) for event in events if isinstance(event, Ended)]


def notes(events: list[Event]) -> list[str]:
    return [event.sentence for event in events if isinstance(event, Noted)]


def test_a_run_goes_out_and_comes_home(train: Callable[..., list[Event]], tmp_path: Path) -> None:
    ray, held = Scripted(HERE, "started", News(Parcel(1, 0, b"")), ENDED), []

    def heard(event: Event) -> None:
        held.append(is_running(tmp_path / "runs" / "one"))

    events = train(ray, heard=heard)
    assert [type(event).__name__ for event in events] == ["Began", "Noted", "Advanced", "Ended"]
    assert held == [True, False, False, False]  # its folder is ours until its end was heard
    assert ends(events) == [("complete", "")]
    assert (tmp_path / "runs" / "one" / "config.yaml").read_bytes() == b"x"
    assert (tmp_path / "workers.log").read_text() == "== one, on n1 ==\nhm"
    assert ray.called == ["about", "start", "news", "news", "leave"]


def test_a_run_that_loses_its_nodes_in_vain_has_failed(train: Callable[..., list[Event]]) -> None:
    lost = [answer for _ in range(4) for answer in (HERE, Lost("The node died.\nIt was n1."))]
    events = train(Scripted(*lost))
    assert ends(events) == [("failed", "It lost 4 nodes without having come any further: The node died.")]
    assert notes(events) == ["The node n1 was lost, and the run goes on elsewhere from what came home."] * 3
    assert sum(isinstance(event, Began) for event in events) == 1


def test_a_run_that_comes_further_each_time_may_lose_many_nodes(train: Callable[..., list[Event]]) -> None:
    answers: list[Any] = []
    for step in range(6):
        came = News(Parcel(1, 0, b"", {f"checkpoints/step_{step:012}.safetensors": b""}))
        answers += [HERE, "started", came, Lost("gone")]
    assert ends(train(Scripted(*answers, HERE, "started", ENDED))) == [("complete", "")]


def test_a_cluster_that_is_not_fit_for_any_run_ends_the_experiment(train: Callable[..., list[Event]]) -> None:
    with pytest.raises(UserError, match=r"lacks a package \(ModuleNotFoundError: No module named 'proximo'\); install"):
        train(Scripted(Lost("died\nTraceback:\nModuleNotFoundError: No module named 'proximo'")))
    with pytest.raises(UserError, match="cannot set up what --runtime-env asks for: no such package"):
        train(Scripted(SetUpFailed("no such package")))
    with pytest.raises(UserError, match=r"the node n1 does not see .*; leave --shared out"):
        train(Scripted(HERE), shared=True)


def test_what_goes_wrong_on_a_node_or_in_what_it_sends_is_the_failure_of_that_run(
    train: Callable[..., list[Event]],
) -> None:
    assert ends(train(Scripted(HERE, RayError("OSError: the disk is full")))) == [
        ("failed", "The node n1: OSError: the disk is full")
    ]
    ((end, sentence),) = ends(train(Scripted(HERE, "started", News(Parcel(1, 0, b"", {"../x": b""})))))
    assert (end, sentence) == ("failed", "A node has sent a file that no run has: '../x'.")
    ((end, sentence),) = ends(train(Scripted(HERE, "started", News(Parcel(1, 99, b"x\n")))))
    assert end == "failed"
    assert "rows before these are missing" in sentence


def test_a_node_with_other_versions_is_named(train: Callable[..., list[Event]]) -> None:
    other = About("n2", versions() | {"jax": "0.9"}, sees=True)
    told = notes(train(Scripted(other, "started", ENDED)))
    assert told[0].startswith("The node n2 has jax 0.9 instead of ")


def test_a_run_that_was_stopped_and_does_not_answer_is_given_up(
    train: Callable[..., list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_fleet, "STOP_SECONDS", 0.0)
    ray = Scripted(HERE, "started", News(Parcel(1, 0, b""), ["stop it"]), None)
    assert ends(train(ray)) == [("interrupted", "")]
    assert ray.called[-3:] == ["stop", "news", "kill"]


def test_a_signal_ends_what_waits_without_a_word(train: Callable[..., list[Event]], tmp_path: Path) -> None:
    interrupt = Interrupt(deaf=True)
    interrupt.end(signal.SIGTERM)
    assert not RayFleet(Cluster("auto"), None, tmp_path, interrupt, HandedIn())._busy()
