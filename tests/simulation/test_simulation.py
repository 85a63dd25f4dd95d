"""Hundreds of seeded systems under faults: no promise is broken, and no fault is missing."""

from collections.abc import Callable

import pytest

from tests.seeds import seeds
from tests.simulation.report import PROPERTY
from tests.simulation.runner import run_seeds

_CHUNKS, _SEEDS_IN_CHUNK = 2, 60


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_no_promise_is_broken_whatever_happens(
    chunk: int, record_property: Callable[[str, object], None]
) -> None:
    chosen = seeds(_CHUNKS * _SEEDS_IN_CHUNK)[chunk * _SEEDS_IN_CHUNK :][:_SEEDS_IN_CHUNK]
    tally, failures = run_seeds(chosen)
    record_property(PROPERTY, tally.to_json())
    assert not failures, "\n\n".join(failures)
    assert not tally.lacking, "a fault became rare: " + "; ".join(tally.lacking)
