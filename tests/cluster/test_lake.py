"""A lake of what the suite writes: the commands, as a user calls them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.cli.main import main
from tests.cluster.bucket import Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_lake_follows_and_equals_the_bucket(
    bucket: Bucket, tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all that the bucket has, the filter lets only these keys into the lake."""
    del spark  # the commands take over the session
    prefix = bucket.key("lake-").decode()
    place = ["--set", f"lake.root={tmp_path / 'lake'}", "--set", f"filter.include_keys=^{prefix}"]
    words = [*bucket.words, *place]

    def documents() -> dict[str, int]:
        capsys.readouterr()
        question = "SELECT key, get_json_object(document, '$.n') AS n FROM documents"
        assert main(["sql", *words, "--json", question]) == 0
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return {row["key"].removeprefix(prefix): int(row["n"]) for row in rows}

    for number in range(40):
        bucket.set(bucket.key(f"lake-{number}"), b'{"n": %d}' % number)
    assert main(["run", "--once", *words]) == 0
    expected = {str(number): number for number in range(40)}
    assert documents() == expected

    bucket.delete(bucket.key("lake-0"))
    bucket.set(bucket.key("lake-1"), b'{"n": 100}')
    bucket.set(bucket.key("lake-40"), b'{"n": 40}')
    assert main(["run", "--once", *words]) == 0
    del expected["0"]
    assert documents() == expected | {"1": 100, "40": 40}

    capsys.readouterr()
    assert main(["verify", *words]) == 0
    assert "equal" in capsys.readouterr().out
