"""An experiment in MLflow: a run for all of it, one for each trial beneath, and beneath these the runs themselves."""

from __future__ import annotations

import dataclasses
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from proximo.credentials import redacted
from proximo.experiment.plan import Plan, PlannedRun
from proximo.metric_names import key_name
from proximo.run_dir.files import LARGEST_PLAN, read_mapping, to_json, write_atomically
from proximo.run_dir.read import is_complete
from proximo.tracking.facts import safe_name
from proximo.tracking.feed import Feeder, say, send_everything, serve
from proximo.tracking.mlflow import MEMORY, MlflowTracker, find_experiment, find_uri, make_client
from proximo.tracking.process import NoTracker, TrackerProcess, is_wanted

FILES = ("summary.json", "summary.csv", "report.html", "plots/*.png")


class ExperimentProcess(TrackerProcess):
    """Feeds MLflow while an experiment runs."""

    command = ("proximo.experiment.track",)

    def _lack(self, sent: int) -> str:
        return f"part of this experiment (it has {sent:,} runs)" if sent else "this experiment"


def make_tracker(plan: Plan, out: Path, note: Callable[[str], None]) -> NoTracker:
    """What tracks an experiment."""
    if not any(is_wanted(run.config) for run in plan.runs):
        return NoTracker()
    return ExperimentProcess(out, note, plan.runs[0].config.track.tracking_uri)


class ExperimentFeeder:
    """Sends what is due of the experiment in `out`. What fails raises, and is done again by the next call."""

    def __init__(self, out: Path, uri: str | None = None, tell: Callable[..., object] = dict):
        self._tell = tell
        self.out, self.plan = out, Plan.load(out)
        self._memory = read_mapping(out / MEMORY)
        self.uri = find_uri(out, uri or self.plan.runs[0].config.track.tracking_uri, self._memory)
        self._client: Any = None
        self._groups: dict[str, str] = {}  # the experiment's own run ("") and those of the trials
        self._feeders: dict[str, Feeder] = {}
        self._done: set[str] = set()

    @property
    def address(self) -> str:
        return redacted(self.uri)

    @property
    def sent(self) -> int:
        """How many runs MLflow has to their end."""
        return len(self._done)

    def feed(self) -> None:
        """Send what runs that are at work have written, and all of those that have ended."""
        self._connect()
        for run in self.plan.runs:
            self._feed(run)

    def finish(self) -> None:
        """Send everything that is left, and the comparison."""
        self._connect()
        for run in self.plan.runs:
            if run.folder not in self._done and (self.out / run.folder / "config.yaml").is_file():
                self._feeder(run).finish()
                self._done.add(run.folder)
                self._tell(sent=self.sent)
        summary = read_mapping(self.out / "summary.json", LARGEST_PLAN)
        whole = all(is_complete(self.out / run.folder) for run in self.plan.runs)
        for trial, run_id in self._groups.items():
            for name, value in numbers(summary, trial).items():
                self._client.log_metric(run_id, name, value)
            self._client.set_terminated(run_id, "FINISHED" if whole else "KILLED")
        for file in sorted(file for pattern in FILES for file in self.out.glob(pattern)):
            folder = file.relative_to(self.out).parent.as_posix()
            self._client.log_artifact(self._groups[""], str(file), None if folder == "." else folder)

    def _feed(self, run: PlannedRun) -> None:
        path = self.out / run.folder
        if run.folder in self._done or not (path / "config.yaml").is_file() or not (path / "metrics.jsonl").is_file():
            return
        feeder = self._feeder(run)
        if is_complete(path):
            feeder.finish()
            self._done.add(run.folder)
            self._feeders.pop(run.folder)
        else:
            feeder.feed()

    def _feeder(self, run: PlannedRun) -> Feeder:
        if run.folder not in self._feeders:
            track = dataclasses.replace(run.config.track, experiment_name=self._experiment_name)
            tags = {"mlflow.parentRunId": self._groups[run.trial], "trial": run.trial}
            path, config = self.out / run.folder, dataclasses.replace(run.config, track=track)
            self._feeders[run.folder] = Feeder(MlflowTracker(path, config, self.uri, tags), path, config)
        return self._feeders[run.folder]

    @property
    def _experiment_name(self) -> str:
        return self.plan.runs[0].config.track.experiment_name or self.plan.name

    def _connect(self) -> None:
        """Find the runs that stand for the experiment and its trials, or begin them."""
        if self._groups:
            return
        if self._client is None:
            self._client = make_client(self.uri)
        self._memory |= {"uri": self.uri, "key": self._memory.get("key") or uuid.uuid4().hex}
        write_atomically(self.out / MEMORY, to_json(self._memory, indent=2) + "\n")
        place = find_experiment(self._client, self.uri, self._experiment_name)
        groups = {"": self._group(place, self._memory["key"], self.out.name, {}, {})}
        overrides = {run.trial: run.overrides for run in self.plan.runs}
        for number, (trial, changed) in enumerate(overrides.items()):
            key, tags = f"{self._memory['key']}-{number}", {"mlflow.parentRunId": groups[""], "trial": trial}
            groups[trial] = self._group(place, key, trial, tags, changed)
        self._groups = groups

    def _group(self, place: str, key: str, name: str, tags: dict[str, str], params: dict[str, Any]) -> str:
        known = self._client.search_runs([place], f"tags.`proximo.key` = '{key}'")
        if known:
            self._client.update_run(known[0].info.run_id, status="RUNNING")
            return str(known[0].info.run_id)
        began = int(1000 * time.time())
        made = self._client.create_run(place, began, {"proximo.key": key, **tags}, name)
        for path, value in params.items():
            self._client.log_param(made.info.run_id, path, value)
        return str(made.info.run_id)


def numbers(summary: dict[str, Any], trial: str) -> dict[str, float]:
    """What the comparison says of one trial, as metrics; of the whole experiment (""), how many runs count."""
    found: dict[str, float] = {}
    for one in summary.get("trials", []):
        if trial in ("", one["name"]):
            found["runs"] = found.get("runs", 0.0) + one["runs"]
            found["runs_counted"] = found.get("runs_counted", 0.0) + one["counted"]
        if trial == one["name"]:
            scores = one["scores"] | ({"overall": one["overall"]} if one["overall"] else {})
            for env, score in scores.items():
                named = {f"{safe_name(env)}/{name}": score[name] for name in ("iqm", "low", "high")}
                found |= {name: float(value) for name, value in named.items() if value is not None}
            for told in one.get("own_metrics", []):
                found[key_name(f"{safe_name(told['environment'])}/{told['name']}")] = told["iqm"]
    return found


def sync(out: Path, uri: str | None = None) -> ExperimentFeeder:
    """Send everything of an experiment that MLflow does not have yet."""
    feeder = ExperimentFeeder(out, uri)
    send_everything(feeder, out)
    return feeder


def main() -> None:
    out = Path(sys.argv[1])
    serve(out, partial(ExperimentFeeder, out, tell=say))


if __name__ == "__main__":
    main()
