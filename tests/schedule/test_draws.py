"""Random schedules: refused with a reason, or the result does not change. More of them: make fuzz."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.places import INTERPRETER
from schedule.draws import case_of, draw
from schedule.judge import judged


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_interpreted(rng: random.Random) -> None:
    made = draw(rng)
    case, p = case_of(made.name)
    assert all("got: " in why and "hint: " in why for _, why in made.refused)
    judged(case, made.steps, ("flat", "tile"), p)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("place", ["c", pytest.param("triton", marks=INTERPRETER)])
def test_compiled(place: str, seed: int) -> None:
    made = draw(random.Random(seed))
    case, p = case_of(made.name)
    judged(case, made.steps, (place,), p)
