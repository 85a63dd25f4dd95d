"""Seeds of the random tests: fixed in CI, fresh ones from ``DCPLAKE_TEST_SEED`` (``make soak``)."""

import os


def seeds(count: int, first: int = 0, soak_count: int | None = None) -> list[int]:
    """Return ``count`` seeds from ``first`` on; fresh ones with the variable, ``soak_count``."""
    base = os.environ.get("DCPLAKE_TEST_SEED")
    if base is None:
        return list(range(first, first + count))
    start = int(base) * 1000 + first
    return list(range(start, start + (count if soak_count is None else soak_count)))
