"""Users and passwords in addresses: used, and never written or shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from proximo import credentials, settings
from proximo.credentials import login, redacted, variables, with_login, without_login


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_known", {})
    for name in (credentials.USERNAME, credentials.PASSWORD):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("uri", "bare", "user", "password"),
    [
        ("http://me:secret@host:5000", "http://host:5000", "me", "secret"),
        ("https://me:s/e@c:r?e#t@host/path", "https://host/path", "me", "s/e@c:r?e#t"),
        ("http://me:12/34@host", "http://host", "me", "12/34"),
        ("http://me:s%40t@host", "http://host", "me", "s@t"),
        ("postgresql://me:secret@host:5432/db", "postgresql://host:5432/db", "me", "secret"),
        ("mysql+pymysql://me:s/t@host/db?x=1", "mysql+pymysql://host/db?x=1", "me", "s/t"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?x=1", "me", "secret"),
        ("http://token@host", "http://host", "token", ""),
    ],
)
def test_addresses_are_kept_without_their_users(uri: str, bare: str, user: str, password: str) -> None:
    assert without_login(uri) == bare
    assert without_login(bare) == bare
    assert login(bare) == (user, password)
    assert variables(bare) == {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}
    assert not password or password not in redacted(f"cannot reach {uri}, or {password}")


@pytest.mark.parametrize(
    "uri", ["sqlite:////home/me@work/a:b.db", "http://host:5000", "databricks", "", "file:///a@b", "x@y", "://"]
)
def test_other_addresses_stay(uri: str) -> None:
    assert without_login(uri) == uri
    assert login(uri) is None
    assert variables(uri) == {}
    assert redacted(uri) == uri


def test_databases_are_connected_to_with_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = without_login("postgresql://me:s/e@t@host/db")
    assert with_login(bare) == "postgresql://me:s%2Fe%40t@host/db"
    assert with_login("postgresql://other/db") == "postgresql://other/db"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "you")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "word")
    assert with_login("postgresql://other/db") == "postgresql://you:word@other/db"
    assert with_login("http://host") == "http://host"  # MLflow itself asks the environment
    assert with_login("sqlite:///x.db") == "sqlite:///x.db"


def test_no_setting_holds_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = "http://me:p/w@x@host:5000"
    (tmp_path / "given.yaml").write_text(f"track: {{tracking_uri: '{uri}'}}")
    for values in (
        settings.from_assignments([f"track.tracking_uri={uri}"]),
        settings.from_keywords({"tracking_uri": uri}),
        settings.from_mapping({"track": {"tracking_uri": uri}}, "config"),
        settings.from_file(tmp_path / "given.yaml"),
    ):
        config = settings.build(values)
        assert config.track.tracking_uri == "http://host:5000"
        assert "p/w" not in settings.to_yaml(config) + json.dumps(settings.to_mapping(config))
    [path] = settings.from_assignments(["track.tracking_uri=sqlite:///deep/mlflow.db"]).values()
    assert path == f"sqlite:///{os.getcwd()}/deep/mlflow.db"
    assert settings.from_assignments([f"track.tracking_uri={path}"])["track.tracking_uri"] == path
