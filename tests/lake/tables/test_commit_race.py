"""Two drivers at once on S3; `tests/interop/test_versitygw.py` does the same on another server."""

from pathlib import Path

import pytest

from tests.lake.commit_race import require_that_only_ours_loses_nothing
from tests.lake.object_store import ObjectStore


@pytest.mark.slow
def test_two_drivers_that_commit_in_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    with ObjectStore() as store:
        require_that_only_ours_loses_nothing(store.endpoint, tmp_path)
