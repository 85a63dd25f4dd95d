"""A table on S3 is read without Spark; `tests/interop/test_versitygw.py` tries another server."""

from tests.lake.object_store import ObjectStore
from tests.lake.store_reads import require_reads_and_appends


def test_a_table_on_s3_is_made_appended_to_and_read_without_spark() -> None:
    with ObjectStore() as store:
        require_reads_and_appends(store.options)
