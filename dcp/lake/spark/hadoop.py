"""Access to stores through a Spark session: its log store, and small files in its folders."""

from typing import Any

from pyspark.sql import SparkSession

from dcp.errors import ConfigError
from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.storage_options import LOG_STORE, log_store_in
from dcp.lake.spark.jars import LOG_STORE_JAR
from dcp.lake.spark.session import jvm_of


def log_store_of(spark: SparkSession, path: str) -> str:
    """Return the class with which a session commits to a location on S3.

    Raises:
        ConfigError: it is Delta's own class, which may overwrite commits of others.
    """
    if chosen := log_store_in(lambda key: spark.conf.get(key, None), path):
        return chosen
    key = f"spark.delta.logStore.{parts_of(path).scheme}.impl"
    raise ConfigError(
        f"{path}: found no setting {key} in this Spark session, expected {LOG_STORE}: without it "
        "two drivers could commit the same version. Set it where the session starts, and add the "
        f"jar {LOG_STORE_JAR} (docs/howto/object-stores.md)"
    )


def try_conditional_writes(spark: SparkSession, folder: str) -> bool:
    """Test that the store of a folder refuses to overwrite; return False under Spark Connect.

    If Spark raises any exception, the store overwrites, or does not answer.
    """
    jvm = jvm_of(spark)
    if jvm is None:
        return False
    path = jvm.org.apache.hadoop.fs.Path(folder)
    jvm.dcplake.S3LogStore.requireConditionalWrites(path, _hadoop_configuration(spark))
    return True


def remove_hidden_files(spark: SparkSession, folder: str) -> None:
    """Remove a folder if it holds hidden files only. It does nothing under Spark Connect.

    If Spark raises any exception, the folder is missing, or the store forbids the removal.
    """
    if (jvm := jvm_of(spark)) is not None:
        path = jvm.org.apache.hadoop.fs.Path(folder)
        store = path.getFileSystem(_hadoop_configuration(spark))
        files = [each.getPath() for each in store.listStatus(path)]
        if all(each.getName().startswith(".") for each in files):
            for each in files:
                store.delete(each, False)
            store.delete(path, False)  # not recursive: another process may have committed


def put_file(spark: SparkSession, file: str, content: bytes) -> None:
    """Write or replace a small file. It does nothing under Spark Connect."""
    if (jvm := jvm_of(spark)) is not None:
        path = jvm.org.apache.hadoop.fs.Path(file)
        stream = path.getFileSystem(_hadoop_configuration(spark)).create(path, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


def file_content(spark: SparkSession, file: str) -> bytes | None:
    """Return the content of a small ASCII file; None if it is missing, or under Spark Connect."""
    if (jvm := jvm_of(spark)) is None:
        return None
    path = jvm.org.apache.hadoop.fs.Path(file)
    store = path.getFileSystem(_hadoop_configuration(spark))
    if not store.exists(path):
        return None
    stream = store.open(path)
    try:
        content: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        return content.encode()
    finally:
        stream.close()


def _hadoop_configuration(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()
