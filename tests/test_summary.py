"""Statistics of an evaluation, against published numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from proximo.rollout.summary import Evaluation, mean_interval, share_interval


def test_students_interval() -> None:
    """Student (1908): the extra sleep of ten patients with drug 2 minus drug 1. Mean 1.58, deviation 1.23, and
    t = 2.262 for nine degrees of freedom: 0.70 to 2.46, as R's `t.test(extra ~ group, paired = TRUE)` has it."""
    extra = np.array([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert mean_interval(extra) == pytest.approx((0.7001142, 2.4598858), abs=1e-7)


@pytest.mark.parametrize(
    ("count", "n", "interval"),
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0000, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilsons_interval(count: int, n: int, interval: tuple[float, float]) -> None:
    """Newcombe (1998), Statistics in Medicine 17, table I, method 3."""
    assert share_interval(count, n) == pytest.approx(interval, abs=5e-5)
    low, high = interval
    assert share_interval(n - count, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_summary() -> None:
    """Returns 1, 2, 3: deviation sqrt(2 / 3), and the mean's interval is 2 -+ 4.3027 / sqrt(3)."""
    summary = Evaluation(np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 7.0]), np.array([True, False, False])).summary()
    assert list(summary) == [
        *("episodes", "episodes_cut"),
        *(f"return_{name}" for name in ("mean", "std", "min", "max", "low", "high")),
        *(f"length_{name}" for name in ("mean", "std", "min", "max", "low", "high")),
        *("success_rate", "success_low", "success_high"),
    ]
    assert summary["episodes"] == 3
    assert summary["return_std"] == pytest.approx(0.81650, abs=1e-5)
    assert (summary["return_low"], summary["return_high"]) == pytest.approx((-0.48414, 4.48414), abs=1e-5)
    assert (summary["length_mean"], summary["length_min"], summary["length_max"]) == (5.0, 4.0, 7.0)
    assert summary["success_rate"] == pytest.approx(1 / 3)
    json.dumps(summary, allow_nan=False)


def test_one_episode_has_no_interval() -> None:
    summary = Evaluation(np.array([5.0]), np.array([2.0]), np.array([True])).summary()
    assert (summary["return_mean"], summary["return_low"], summary["length_high"]) == (5.0, None, None)
    assert summary["success_low"] == pytest.approx(0.2065, abs=1e-4)  # 1 / (1 + 1.96^2)


def test_what_is_not_finite_is_none() -> None:
    summary = Evaluation(np.array([np.nan, 1.0]), np.array([2.0, 2.0]), np.array([True, False])).summary()
    assert summary["return_mean"] is None
    assert summary["return_high"] is None
    assert summary["length_mean"] == 2.0
    json.dumps(summary, allow_nan=False)
