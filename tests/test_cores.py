"""Which cores a run has for itself."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from proximo.fleet import cores


def test_no_two_runs_have_the_same_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cores, "available_cores", lambda: [3, 5, 6])
    with contextlib.ExitStack() as last:
        with contextlib.ExitStack() as first:
            assert cores.claim_cores(2, first) == [3, 5]
            assert cores.claim_cores(2, last) == []  # and the one that is left is not kept
            assert cores.claim_cores(1, last) == [6]
        assert cores.claim_cores(2, last) == [3, 5]


def test_where_cores_cannot_be_claimed_none_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert cores.claim_cores(1, contextlib.ExitStack()) == []
