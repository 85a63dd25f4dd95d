"""A Spark driver in a process of its own that inserts rows into Delta tables, one for each line."""

import json
import sys
from pathlib import Path

from dcp.lake.spark.session import build_session
from tests.quick_spark import QUICK_CONF


def main(folder: Path, conf: dict[str, str]) -> None:
    """Do the statements of standard input; answer each in JSON: null, or why it failed."""
    spark = build_session(
        app_name="dcplake tests: a racing driver",
        master="local[1]",
        driver_memory="1g",
        spark_log=folder / "spark.log",
        extra=QUICK_CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse"), **conf},
        on_s3=True,
    )
    for line in sys.stdin:
        failure = None
        try:
            found = [row[0] for row in spark.sql(json.loads(line)).collect()]
        except Exception as error:  # any is an answer
            found, failure = [], str(error)
        print(json.dumps({"found": found, "failure": failure}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
