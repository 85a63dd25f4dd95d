"""The race of two Spark drivers to one version of a table on S3, with either log store."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import urlsplit

from dcp.lake.config.storage_options import s3a_settings
from tests.lake.commit_gate import CommitGate
from tests.lake.object_store import ACCESS_KEY, BUCKET, SECRET_KEY

_DELTAS_OWN: Final = {
    "spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore",
}
"""For tables on s3a, beside ours for those on s3: what a user chose goes on working."""

_ROUNDS: Final = {"s3": 2, "s3a": 1}
"""How often both commit at once, by the scheme. With ours the second race is in a table that both
have written to."""


class RacingDriver:
    """One of the two, in a JVM of its own."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        folder.mkdir()
        options = {"endpoint": endpoint, "allow_http": "true"}
        conf = s3a_settings(f"s3://{BUCKET}", options, {}) | _DELTAS_OWN
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        words = [sys.executable, "-m", "tests.lake.racing_driver", str(folder), json.dumps(conf)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | keys
        )

    def begin(self, statement: str) -> None:
        stdin = cast("IO[bytes]", self._process.stdin)
        stdin.write(json.dumps(statement).encode() + b"\n")
        stdin.flush()

    def ended(self) -> list[Any]:
        """Wait for its end, which must be a good one; return the first column of what it found."""
        stdout = cast("IO[bytes]", self._process.stdout)
        answer = json.loads(stdout.readline())
        assert answer["failure"] is None, answer["failure"]
        return list(answer["found"])

    def do(self, statement: str) -> list[Any]:
        self.begin(statement)
        return self.ended()

    def end(self) -> None:
        self._process.communicate(timeout=60)


@contextmanager
def two_drivers(folder: Path, endpoint: str) -> Iterator[tuple[RacingDriver, RacingDriver]]:
    """Give two drivers in two JVMs."""
    drivers = [RacingDriver(folder / name, endpoint) for name in ("first", "second")]
    try:
        yield drivers[0], drivers[1]
    finally:
        for each in drivers:
            each.end()


def require_that_only_ours_loses_nothing(endpoint: str, folder: Path) -> None:
    """Let two drivers insert into one table at the same moments.

    All is acknowledged; with Delta's log store for one driver half of it is overwritten.
    """
    with CommitGate(endpoint) as gate, two_drivers(folder, gate.endpoint) as drivers:
        for scheme, rounds in _ROUNDS.items():
            left = 2 * rounds if scheme == "s3" else rounds
            place = f"{scheme}://{BUCKET}/race-{scheme}"
            drivers[0].do(f"CREATE TABLE delta.`{place}` (n INT) USING delta")
            version = 0
            for number in range(rounds):
                path = f"{urlsplit(place).path}/_delta_log/{version + 1:020}.json"
                gate.hold(f"/{BUCKET}{path}")
                for n, driver in enumerate(drivers):
                    driver.begin(f"INSERT INTO delta.`{place}` VALUES ({2 * number + n})")
                for driver in drivers:
                    driver.ended()
                assert gate.held_back.pop().decode().endswith(path)
                history = f"DESCRIBE HISTORY delta.`{place}` LIMIT 1"
                version = drivers[0].do(history)[0]
            for driver in drivers:
                found = driver.do(f"SELECT n FROM delta.`{place}` ORDER BY n")
                assert len(found) == left, (scheme, found)
                assert set(found) <= set(range(2 * rounds))
            assert version == left
