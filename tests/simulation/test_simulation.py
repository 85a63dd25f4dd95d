"""Seeded systems under faults: no promise is broken, and no fault is missing."""

from collections.abc import Callable

import pytest

from tests.seeds import seeds
from tests.simulation.report import PROPERTY
from tests.simulation.runner import run_seeds

_SEEDS = 60


@pytest.mark.slow
def test_no_promise_is_broken_whatever_happens(
    record_property: Callable[[str, object], None],
) -> None:
    tally, failures = run_seeds(seeds(_SEEDS))
    record_property(PROPERTY, tally.to_json())
    assert not failures, "\n\n".join(failures)
    assert not tally.lacking, "a fault became rare: " + "; ".join(tally.lacking)
