"""Tries an object store as a commit uses it: by Spark's connector, and dcplake's log store."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dcp.lake.run.checked_step import Finding
from dcp.lake.spark.failures import spark_errors
from dcp.lake.spark.session import LOG_STORE, log_store_of, try_conditional_writes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def try_store(spark: "SparkSession", root: str, finding: Finding) -> None:
    """Write a file below a root on S3, try to overwrite it, which the store must refuse, remove it.

    Raises:
        SetupError: the store cannot be reached, or does not let us.
        LakeError: it overwrites.
        ConfigError: the session is somebody else's, and commits to S3 without the store's refusal.

    """
    bucket, chosen = urlsplit(root).netloc, log_store_of(spark, root)
    if chosen != LOG_STORE:
        finding.say(f"{bucket}: not tried, the log store is {chosen}")
        return
    with spark_errors(root):
        is_tried = try_conditional_writes(spark, root)
    found = "writes, removes, and refuses to overwrite" if is_tried else "the first run tries it"
    finding.say(f"{bucket}: {found}")
