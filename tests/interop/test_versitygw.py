"""Spark's commits on a second, independent S3 server, so that nothing here is a habit of moto's."""

from pathlib import Path

import pytest

from tests.interop.store_servers import versitygw
from tests.lake.commit_race import require_that_only_ours_loses_nothing

pytestmark = pytest.mark.interop


@pytest.mark.timeout(900)
def test_two_drivers_that_commit_in_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    with versitygw(tmp_path / "server") as server:
        require_that_only_ours_loses_nothing(server.options["endpoint"], tmp_path)
