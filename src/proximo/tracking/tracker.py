"""What a tracker is. MLflow is one (`proximo.tracking.mlflow:MlflowTracker`)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from proximo.credentials import redacted

Record = dict[str, Any]
LONGEST = 200
UNREACHED = {
    "Connection refused": "connection refused",
    "timed out": "no answer in time",
    "Name or service not known": "no such host",
    "database is locked": "its database is locked",
    "failed with exception": "",  # of MLflow's requests; what it was follows
}
"""What errors say where a tracker gives no answer, and what that is in short."""


@runtime_checkable
class Tracker(Protocol):
    """Takes what a run writes, in the process that feeds it (`proximo.tracking.feed`), which makes one from the run's
    folder and its settings: `tracker(path, config)`. It is named by its dotted path, such as `package.module:Class`,
    since it is made in that process.

    Whatever fails raises, and is called again later, after `open`; so each method can be repeated, and what was taken
    already is no error.
    """

    last_update: int
    """The last row that it has; known after `open`."""

    @property
    def address(self) -> str:
        """Where it is, as people may see it: without a password."""

    def open(self, live: bool) -> None:
        """Find the run, or begin it. `live`: it is being trained."""

    def rows(self, rows: list[Record]) -> None:
        """Take rows of `metrics.jsonl`, in order; some of them, as the settings say."""

    def files(self, final: bool) -> None:
        """Take the files that it lacks as they are now; at the end (`final`) also those that matter only then."""

    def close(self, result: Record | None) -> None:
        """The run has ended with what `result.json` holds; without a result, it was killed."""


def is_unreached(error: Exception) -> bool:
    """Whether the tracker gave no answer; otherwise what it was sent was refused, or could not be sent."""
    return isinstance(error, ConnectionError | TimeoutError) or any(sign in str(error) for sign in UNREACHED)


def in_words(error: Exception) -> str:
    """What went wrong, in short."""
    text = str(error)
    for sign, words in UNREACHED.items():
        if sign in text and words:
            return words
    first = redacted(text.strip().splitlines()[0] if text.strip() else type(error).__name__)
    return first if len(first) <= LONGEST else f"{first[:LONGEST]}…"
