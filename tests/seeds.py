"""Seeds of the random tests: fixed in CI, fresh ones from ``DCPLAKE_TEST_SEED`` (``make soak``)."""

import os


def seeds(count: int, first: int = 0) -> list[int]:
    """Return ``count`` seeds; without the variable they start at ``first``."""
    base = os.environ.get("DCPLAKE_TEST_SEED")
    start = first if base is None else int(base) * 1000 + first
    return list(range(start, start + count))
