"""A session with a secret in a task's closure, as nothing of ours has it: `test_outsiders` runs it.

The task holds until a file is gone; so long the session can be attacked.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dcp.lake.spark.session import build_session
from tests.quick_spark import QUICK_CONF

HOLD_SECONDS = 300.0


def hold(folder: Path, conf: dict[str, str]) -> None:
    """Run the task."""
    secret, flag = (folder / "secret").read_text(), folder / "holding"
    spark = build_session(
        master="local[2]",
        driver_memory="1g",
        spark_log=folder / "spark.log",
        extra=QUICK_CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse")} | conf,
    )

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert secret
        flag.touch()
        end = time.monotonic() + HOLD_SECONDS
        while flag.exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield from batches

    spark.range(0, 1, 1, 1).mapInArrow(wait, "id bigint").collect()
    spark.stop()


if __name__ == "__main__":
    hold(Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:]))
