"""One run in MLflow: found there or begun, fed, and ended. Nothing else imports mlflow, which takes seconds to load.

What MLflow has is the truth of what was sent. Whatever fails raises, and can be done again: a run is found by a key
that is written down before it is begun, a row counts as sent when its metric "update" is there, which travels last, and
a metric that is sent twice is the same to MLflow, since its time comes from the row.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from proximo import settings
from proximo.config import Config
from proximo.credentials import PASSWORD, USERNAME, login, redacted, with_login, without_login
from proximo.metric_names import key_name
from proximo.run_dir.files import PARTIAL, read_mapping, to_json, write_atomically
from proximo.run_dir.read import POLICIES, policy_files
from proximo.tracking import embedded
from proximo.tracking.facts import MODEL_FILE, about_model, about_run, flat, safe_name
from proximo.tracking.tracker import Record

MEMORY = "mlflow.json"
MAX_METRICS, MAX_PARAMS = 1000, 100  # that MLflow takes at a time
LONGEST_VALUE = 6000
SENT = ("config.yaml", "result.json", "models/*", "plots/*", "videos/*")
ENDS = {"interrupted": "KILLED", "failed": "FAILED"}
SURROUNDINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # whoever feeds tries again
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MlflowTracker:
    """The run of the directory `path` in MLflow. `mlflow.json` remembers where that is, and which files it has."""

    last_update: int = 0
    """The last row that MLflow has."""

    def __init__(
        self, path: Path, config: Config, uri: str | None = None, tags: Mapping[str, str] = MappingProxyType({})
    ):
        self.path, self.config, self._tags = path, config, tags
        self._memory = read_mapping(path / MEMORY)
        self.uri = find_uri(path, uri or config.track.tracking_uri, self._memory)
        self._client: Any = None

    @property
    def address(self) -> str:
        """Where the run is, as people may see it."""
        return redacted(self.uri)

    def open(self, live: bool) -> None:
        """Find the run, or begin it. `live`: it is being trained."""
        self._remember(uri=self.uri, key=self._memory.get("key") or uuid.uuid4().hex)
        if self._client is None:
            self._client = make_client(self.uri)
        found = self._find() or self._begin()
        self._id, self._started = found.info.run_id, found.info.start_time
        self._experiment = found.info.experiment_id
        self.last_update = int(found.data.metrics.get("update", 0))
        self._end = found.data.tags.get("proximo.result")
        if self._memory.get("run_id") != self._id:
            self._remember(experiment_id=self._experiment, run_id=self._id, files={})
        self._describe(found)
        if live and found.info.status != "RUNNING":
            self._client.update_run(self._id, status="RUNNING")

    def rows(self, rows: list[Record]) -> None:
        """Send rows of `metrics.jsonl` from `last_update` on: something may have been added to that one at the end."""
        from mlflow.entities import Metric

        for batch in batches([row for row in rows if row["update"] >= self.last_update]):
            metrics = [Metric(name, value, self._started + at, step) for name, value, at, step in batch]
            self._client.log_batch(self._id, metrics=metrics)
            self.last_update = max([self.last_update, *(int(m.value) for m in metrics if m.key == "update")])

    def files(self, final: bool) -> None:
        """Send the files that MLflow does not have as they are now. At the end that includes the last checkpoint and
        the best one, if they are wanted; those on the way are not sent."""
        self._send(sorted(file for pattern in SENT for file in self.path.glob(pattern)))
        if final and self.config.track.checkpoints:
            folder = self.path / "checkpoints"
            self._send([*sorted(folder.glob("step_*.safetensors"))[-1:], *folder.glob("best.safetensors")])

    def _send(self, files: list[Path]) -> None:
        for file in files:
            if file.name.endswith(PARTIAL) or file.is_symlink() or not file.is_file():
                continue
            name, stat = file.relative_to(self.path).as_posix(), file.stat()
            known, now = self._memory.get("files", {}), [stat.st_size, stat.st_mtime_ns]
            if known.get(name) != now:
                folder = name.rpartition("/")[0] or None
                self._client.log_artifact(self._id, str(file), folder)
                self._remember(files=known | {name: now})

    def close(self, result: Record | None) -> None:
        """Say how the run ended, with its policy as an MLflow model; without a result it was killed."""
        if result is None:
            self._client.set_terminated(self._id, "KILLED")
            return
        digest = hashlib.sha256(to_json(result).encode()).hexdigest()[:16]
        models: list[Any] = []
        try:
            if self._end != digest:
                self._send_models(models, digest, result)
        finally:  # a model that is refused does not keep the run from ending
            if self._end != digest:
                self._send_result(result, models[0].model_id if models else None)
            status = ENDS.get(result["stop_reason"], "FINISHED")
            at = int(1000 * (self.path / "result.json").stat().st_mtime)
            self._client.set_terminated(self._id, status, max(at, self._started))
        self._client.set_tag(self._id, "proximo.result", digest)
        self._end = digest

    def _find(self) -> Any:
        """The run that was begun before, if it is still there."""
        from mlflow.exceptions import MlflowException

        if "run_id" in self._memory:
            try:
                found = self._client.get_run(self._memory["run_id"])
                return found if found.info.lifecycle_stage == "active" else None
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return None
        made = self._client.search_runs([self._find_experiment()], f"tags.`proximo.key` = '{self._memory['key']}'")
        return made[0] if made else None

    def _begin(self) -> Any:
        if "run_id" in self._memory:  # that one is gone
            self._memory.pop("run_id")
            self._remember(key=uuid.uuid4().hex)
        began = int(1000 * (self.path / "config.yaml").stat().st_mtime)
        tags = {"proximo.key": self._memory["key"]}
        return self._client.create_run(self._find_experiment(), began, tags, self.path.name)

    def _find_experiment(self) -> str:
        return find_experiment(self._client, self.uri, self.config.track.experiment_name or self.config.env.id)

    def _describe(self, found: Any) -> None:
        """Every setting as a parameter. MLflow's never change: a setting that did, in a resume, becomes a tag."""
        from mlflow.entities import Param, RunTag

        values = {name: value[:LONGEST_VALUE] for name, value in flat(settings.to_mapping(self.config)).items()}
        old = found.data.params
        params = [Param(name, value) for name, value in values.items() if name not in old]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + MAX_PARAMS])
        tags = (
            about_run(self.config)
            | {**self._tags}
            | {f"changed.{name}": value for name, value in values.items() if old.get(name, value) != value}
        )
        new = [RunTag(name, value) for name, value in tags.items() if found.data.tags.get(name) != value]
        if new:
            self._client.log_batch(self._id, tags=new)

    def _send_models(self, models: list[Any], digest: str, result: Record) -> None:
        """Log the final policies, which are added to `models`, and register those of a run that converged."""
        for policy in policy_files(self.path, "final"):
            models.append(self._log_model(policy, digest))
        for model in models if result["converged"] else ():
            self._register(model, digest, result)

    def _send_result(self, result: Record, model: str | None) -> None:
        from mlflow.entities import Metric, RunTag

        at, step = self._started + int(1000 * result["wall_seconds"]), result["total_steps"]
        numbers = {f"result/{name}": value for name, value in result.items()}
        numbers |= {f"result/best_policy_{name}": value for name, value in result["best_policy"].items()}
        numbers |= {f"final/{name}": value for name, value in (result["final_eval"] or {}).items()}
        metrics = [Metric(name, value, at, step, model_id=model) for name, value in only_numbers(numbers)]
        tags = [RunTag("stop_reason", result["stop_reason"]), RunTag("converged", str(result["converged"]).lower())]
        self._client.log_batch(self._id, metrics=metrics, tags=tags)

    def _log_model(self, policy: Path, digest: str) -> Any:
        """The policy as a model that `mlflow.pyfunc` loads. That of a group has its name after the environment's."""
        from mlflow.entities import LoggedModelOutput

        about = {"proximo.result": digest}
        group = policy.name.removeprefix(POLICIES["final"]).removesuffix(".safetensors")
        name = safe_name(self.config.env.id + group)
        known = self._client.search_logged_models([self._experiment], f"source_run_id = '{self._id}'")
        ours = (model for model in known if model.name == name and model.tags.get("proximo.result") == digest)
        model = next(ours, None)
        if model is None:
            model = self._client.create_logged_model(self._experiment, name, self._id, about, model_type="policy")
        if model.status != "READY":
            with tempfile.TemporaryDirectory() as folder:
                shutil.copyfile(policy, Path(folder) / MODEL_FILE)
                for name, text in about_model(self._id, model.model_id).items():
                    (Path(folder) / name).write_text(text, encoding="utf-8")
                self._client.log_model_artifacts(model.model_id, folder)
            self._client.log_outputs(self._id, [LoggedModelOutput(model.model_id, 0)])
            self._client.finalize_logged_model(model.model_id, "READY")
        return model

    def _register(self, model: Any, digest: str, result: Record) -> None:
        """A version in the registry, under the environment's id; `best` is the one with the best evaluation."""
        from mlflow.exceptions import MlflowException

        name, played = model.name, result["final_eval"]
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        versions = list(self._client.search_model_versions(f"name = '{name}'"))
        if not any(version.tags.get("proximo.result") == digest for version in versions):
            tags = {"proximo.result": digest, "seed": str(self.config.seed)}
            if played and played["return_mean"] is not None:
                tags["return_mean"] = str(played["return_mean"])
            # Without a server, MLflow would look for models:/... at the process's default address, not at the client's.
            source = f"models:/{model.model_id}" if self.uri.startswith("http") else model.artifact_location
            made = self._client.create_model_version(name, source, self._id, tags, model_id=model.model_id)
            versions.append(made)
        judged = [version for version in versions if "return_mean" in version.tags]
        if judged:
            best = max(judged, key=lambda version: (float(version.tags["return_mean"]), -int(version.version)))
            self._client.set_registered_model_alias(name, "best", best.version)

    def _remember(self, **facts: Any) -> None:
        if facts.items() <= self._memory.items():
            return
        self._memory |= facts
        write_atomically(self.path / MEMORY, to_json(self._memory, indent=2) + "\n")


def find_uri(path: Path, given: str | None, memory: Record) -> str:
    """The address of the MLflow for the run or experiment in `path`: as it is given, as the environment says, as
    `mlflow.json` remembers, or beside it; without a user and a password, which this process remembers."""
    named = given or os.environ.get("MLFLOW_TRACKING_URI") or embedded.still_there(memory.get("uri"))
    return without_login(named or embedded.uri(path))


def find_experiment(client: Any, uri: str, name: str) -> str:
    """The experiment of that name, which is made where there is none."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, embedded.artifacts(uri, safe_name(name))))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)  # another run was quicker
    return str(found.experiment_id)


def batches(rows: list[Record]) -> Iterator[list[tuple[str, float, int, int]]]:
    """Metrics as (name, value, milliseconds since the start, step), whole rows as far as they fit, "update" last."""
    batch: list[tuple[str, float, int, int]] = []
    for row in rows:
        at, step = int(1000 * row["time/elapsed"]), row["step"]
        named = [(name, value, at, step) for name, value in only_numbers(row) if name != "update"]
        named.append(("update", float(row["update"]), at, step))
        if batch and len(batch) + len(named) > MAX_METRICS:
            yield batch
            batch = []
        batch += named
        while len(batch) > MAX_METRICS:
            yield batch[:MAX_METRICS]
            batch = batch[MAX_METRICS:]
    if batch:
        yield batch


def only_numbers(row: Record) -> list[tuple[str, float]]:
    return [(key_name(name), float(value)) for name, value in row.items() if type(value) in (int, float)]


def make_client(uri: str) -> Any:
    for name, value in SURROUNDINGS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    embedded.create(uri, lambda where: MlflowClient(where).get_experiment_by_name("Default"))
    if found := login(uri):  # MLflow asks the environment
        os.environ |= {USERNAME: found.username, PASSWORD: found.password}
    address = with_login(uri)
    return MlflowClient(address, os.environ.get("MLFLOW_REGISTRY_URI") or address)
