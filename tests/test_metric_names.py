"""Names of metrics that users choose, as trackers take them."""

from __future__ import annotations

import pytest

from proximo.metric_names import key_name, same_to_trackers


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("info/profit", "info/profit"),
        ("info/a b:c-d.e", "info/a b:c-d.e"),
        ("info/gewinn_ä", "info/gewinn_ä"),
        ("info/what?\n", "info/what--"),
        ("info/../secret", "info/-/secret"),
        ("info/./x//y", "info/-/x/-/y"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_as_trackers_take_them(name: str, taken: str) -> None:
    assert key_name(name) == taken


def test_names_that_cannot_be_told_apart() -> None:
    assert same_to_trackers(["a", "b", "a b"]) is None
    assert same_to_trackers(["a?", "b", "a!"]) == ("a?", "a!")
