"""Tries an object store in the ways that a lake uses it. Spark tries it only if nothing else
can.
"""

from typing import TYPE_CHECKING

from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.storage_options import LOG_STORE
from dcp.lake.run.set_up_check import Tell, checking
from dcp.lake.spark.failures import spark_errors
from dcp.lake.spark.hadoop import log_store_of, try_conditional_writes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dcp.lake.adapters.spark_table import StartSpark
    from dcp.lake.store.table_location import TableLocation


def try_store(
    location: "TableLocation | None", start_spark: "StartSpark", root: str, tell: Tell
) -> None:
    """List, write, read, overwrite, swap and remove a file, each as its own step."""
    trial = None if location is None else location.trial()
    if trial is None:
        with checking("object store", tell) as finding:
            finding.say(_found_by_spark(start_spark(), root))
        return
    with trial.cleaned():
        for name, attempt in trial.all().items():
            with checking(name, tell) as finding:
                finding.say(attempt())


def _found_by_spark(spark: "SparkSession", root: str) -> str:
    """Write a file below a root on S3, try to overwrite it, and remove it; return the finding."""
    bucket, chosen = parts_of(root).bucket, log_store_of(spark, root)
    if chosen != LOG_STORE:
        return f"{bucket}: not tried, the log store is {chosen}"
    with spark_errors(root):
        is_tried = try_conditional_writes(spark, root)
    found = "writes, removes, and refuses to overwrite" if is_tried else "the first run tries it"
    return f"{bucket}: {found}"
