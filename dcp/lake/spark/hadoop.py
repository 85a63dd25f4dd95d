"""Stores in a session of Spark: how Spark commits there by itself, and folders of its own."""

from typing import Any

from pyspark.sql import SparkSession

from dcp.errors import ConfigError
from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.storage_options import LOG_STORE, log_store_in
from dcp.lake.spark.jars import LOG_STORE_JAR
from dcp.lake.spark.session import jvm_of


def log_store_of(spark: SparkSession, place: str) -> str:
    """Return the class by which a session commits to a place on S3.

    Raises:
        ConfigError: it is Delta's own, which may overwrite others' commits.
    """
    if chosen := log_store_in(lambda key: spark.conf.get(key, None), place):
        return chosen
    key = f"spark.delta.logStore.{parts_of(place).scheme}.impl"
    raise ConfigError(
        f"{place}: found no setting {key} in this Spark session, expected {LOG_STORE}: without it "
        "two drivers could commit the same version. Who starts the session sets it, and adds the "
        f"jar {LOG_STORE_JAR} (docs/howto/object-stores.md)"
    )


def try_conditional_writes(spark: SparkSession, folder: str) -> bool:
    """Try that the store of a folder refuses to overwrite; False if a server has the session.

    Any exception of Spark means that the store overwrites, or does not answer.
    """
    jvm = jvm_of(spark)
    if jvm is None:
        return False
    path = jvm.org.apache.hadoop.fs.Path(folder)
    jvm.dcplake.S3LogStore.requireConditionalWrites(path, _hadoop_configuration(spark))
    return True


def remove_hidden_files(spark: SparkSession, folder: str) -> None:
    """Remove a folder that holds hidden files only; does nothing if a server has the session.

    Any exception of Spark means that there is no such folder, or that the store forbids it.
    """
    if (jvm := jvm_of(spark)) is not None:
        path = jvm.org.apache.hadoop.fs.Path(folder)
        store = path.getFileSystem(_hadoop_configuration(spark))
        files = [each.getPath() for each in store.listStatus(path)]
        if all(each.getName().startswith(".") for each in files):
            for each in files:
                store.delete(each, False)
            store.delete(path, False)  # not if another process has committed by then


def put_file(spark: SparkSession, file: str, content: bytes) -> None:
    """Write a small file, in place of an older one; does nothing if a server has the session."""
    if (jvm := jvm_of(spark)) is not None:
        path = jvm.org.apache.hadoop.fs.Path(file)
        stream = path.getFileSystem(_hadoop_configuration(spark)).create(path, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


def file_content(spark: SparkSession, file: str) -> bytes | None:
    """Return the content of a small file of ASCII.

    None if it is missing, or a server has the session.
    """
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
