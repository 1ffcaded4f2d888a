"""Who may use an MLflow: known to this process and the ones it starts, and to no file, message or parameter."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

USERNAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
FILES = ("sqlite", "file")
"""Addresses that are paths: an @ in them is part of a name."""
QUERIED = ("user", "password")
_LOGIN = re.compile(r"(?!(?:sqlite|file):)\b([a-z][a-z0-9+.-]*)://\S*@", re.IGNORECASE)
_PARAMETER = re.compile(r"([?&](?:user|password)=)[^&\s]*", re.IGNORECASE)


class Login(NamedTuple):
    username: str
    password: str


_known: dict[str, Login] = {}


def without_login(uri: str) -> str:
    """The address without the user and the password in it, which this process remembers for `login`.

    Whatever stands before the last @ is taken for them: a password may hold a slash, or an @, as it is.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.lower() in FILES:
        return uri
    given, _, rest = rest.rpartition("@")
    username, _, password = given.partition(":")
    place, question, query = rest.partition("?")
    named = dict(parse_qsl(query, keep_blank_values=True))
    if any(name in named for name in QUERIED):
        username, password = (named.pop(*pair) for pair in (("user", username), ("password", password)))
        query = urlencode(named)
        question = "?" if query else ""
    bare = f"{scheme}://{place}{question}{query}"
    if username or password:
        _known[bare] = Login(unquote(username), unquote(password))
    return bare


def login(uri: str) -> Login | None:
    """Who uses the MLflow at this address: as it was given to this process, or as the environment says."""
    username, password = os.environ.get(USERNAME), os.environ.get(PASSWORD)
    return _known.get(uri) or (Login(username or "", password or "") if username or password else None)


def variables(uri: str | None) -> dict[str, str]:
    """What the environment of a process that uses the MLflow at `uri` must say."""
    found = _known.get(uri or "")
    return {USERNAME: found.username, PASSWORD: found.password} if found else {}


def with_login(uri: str) -> str:
    """The address of a database as it is connected to. MLflow's servers are told through the environment instead."""
    scheme, separator, rest = uri.partition("://")
    found = login(uri)
    if not separator or not found or scheme.lower() in (*FILES, "http", "https"):
        return uri
    password = f":{quote(found.password, safe='')}" if found.password else ""
    return f"{scheme}://{quote(found.username, safe='')}{password}@{rest}"


def redacted(text: str) -> str:
    """`text` without passwords: those that are known, and whatever stands where an address has one."""
    secrets = {found.password for found in _known.values()} | {os.environ.get(PASSWORD, "")}
    for secret in sorted((secret for secret in secrets if len(secret) > 2), key=len, reverse=True):
        text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return _PARAMETER.sub(r"\1***", _LOGIN.sub(r"\1://***@", text))
