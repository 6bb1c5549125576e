"""The benchmarks run, at a small size, and say what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_specrl.types import Rollout

FOLDER = Path(__file__).parent.parent / "benchmarks"


def measure(*args: Any, **options: Any) -> dict[str, float]:
    measured: dict[str, float] = runpy.run_path(str(FOLDER / "reuse_planning.py"))["measure"](*args, **options)
    return measured


@pytest.mark.parametrize(("rule", "k"), [("exact", 20), ("block", 20), ("lenient", 20), ("lenient", 0)])
def test_reuse_planning_is_cheap_and_its_memory_is_as_documented(rule: str, k: int) -> None:
    measured = measure(8, 512, k, 64, rule)
    assert measured["kept_tokens"] == 8 * 512, "an unchanged policy keeps everything"
    assert measured["bytes_per_token"] == pytest.approx(12 + 8 * k + 4 * 100 / 512)
    # Under 2 us a token; far above it something has become a Python loop over tokens.
    assert measured["planning_us_per_token"] < 20
    assert measured["one_percent_step_s"] == pytest.approx(measured["planning_ms"] / 10)
    parts = sum(measured[f"{part}_ms"] for part in ("lookup", "verify", "splice"))
    assert measured["planning_ms"] == pytest.approx(parts)


def test_reuse_planning_counts_replacements_apart() -> None:
    measured = measure(8, 64, 20, 64, "exact", drift=2.0)
    assert measured["replaced_tokens"] == 8
    assert 0 < measured["kept_tokens"] < 8 * 64
    assert measured["replace_us_each"] == pytest.approx(measured["replace_ms"] * 1e3 / 8)


def bias() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "bias.py"))


def random_laws(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.dirichlet(np.ones(4), n).astype(np.float32)


@pytest.mark.parametrize("ell", [1.0, 1.6])
def test_the_lenient_law_is_its_closed_form(ell: float) -> None:
    """Against the sum over draft tokens and outcomes of one position, kept books and relogged ones."""
    rng = np.random.default_rng(0)
    m, told, p = (random_laws(rng, 5) for _ in range(3))
    for q in (m, told):
        law, accept = bias()["lenient"](m, q, p, ell)
        for row in range(5):
            want = np.zeros(4)
            for y in range(4):
                stands = min(1.0, ell * p[row, y] / q[row, y])
                assert accept[row, y] == pytest.approx(stands, abs=1e-6)
                want[y] += m[row, y] * stands
                want += m[row, y] * (1 - stands) * p[row]
            np.testing.assert_allclose(law[row], want, atol=1e-6)


def test_the_sequence_figure_bounds_and_here_meets_the_tv_of_the_joint_laws() -> None:
    """One position: averaged over the drafts it is the TV of (token, whether it was kept) from what p would give."""
    rng = np.random.default_rng(1)
    found = bias()
    q, p = random_laws(rng, 1), random_laws(rng, 1)
    law, _ = found["lenient"](q, q, p, 1.6)
    nothing = np.zeros(1, np.float32), np.zeros(1, np.int32)
    per_draft = [
        found["sequence_tv"](
            Rollout("", 0, np.zeros(1, np.int32), np.array([y], np.int32), *nothing, "stop"), q, p, 1.6
        )
        for y in range(4)
    ]
    assert float(q[0] @ per_draft) == pytest.approx(float(found["tv"](law, p)[0]), abs=1e-6)


def test_the_seeds_table_pairs_seeds_and_counts_the_steps_inside() -> None:
    table = runpy.run_path(str(FOLDER / "five_seeds.py"))["table"]
    rng = np.random.default_rng(0)
    base = {seed: rng.normal(0.5, 0.1, 30) for seed in range(5)}
    text = table({"vanilla": base, "worse": {seed: run - 0.3 for seed, run in base.items()}})
    vanilla, worse = text.splitlines()[2:]
    assert vanilla.endswith("30 of 30 steps |")
    assert worse.endswith(" 0 of 30 steps |")
    assert worse.count("(-0.300 [-0.300, -0.300])") == 3
