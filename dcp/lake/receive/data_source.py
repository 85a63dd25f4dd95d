"""The Spark data source ``dcp``: reads a bucket's current documents, without a lake.

    spark.read.format("dcp").option("seeds", "host:11210").option("bucket", "b") .option("username",
        "u").option("password_env", "CB_PASSWORD").load()

Options are the keys of the configuration's ``source`` section, and any other setting as
``section.key``. The password is no option, since Spark would carry it to each task: tasks find it
in the environment or the file that ``password_env`` or ``password_file`` names.

Each vbucket is read to a snapshot end, so its documents are a state that existed. Nothing is
stored; rounds fill a lake (`dcp.lake.run.replicate`). Unlike a round this read is all or nothing:
it fails if a vbucket cannot be read to its end.

PySpark finds the format in ``pyspark_dcp``. It looks with the Python of ``PYSPARK_PYTHON``, else
with the ``python3`` of the path: that one must have dcplake.
"""

from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dcp.errors import ConfigError, NodeUnavailableError
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.config.settings_load import load_settings
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.receive.stop_policy import UNLIMITED
from dcp.lake.receive.task_receiver import TaskReceiver
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import Idle, TaskPlan, left_out_lines
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.tables.document_filter import filter_of
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS, REPLICA, RowKind, spark_ddl
from dcp.setting_keys import shown_settings
from dcp.suggestions import did_you_mean
from dcp.wire.json_tree import json_tree
from dcp.wire.snappy import MAX_INFLATED_BYTES
from dcp.wire.vocabulary import Datatype

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_ELSEWHERE: Final = ("key", "key_bytes", "vb_uuid", "epoch", "value", "modified_at")
"""Columns of a replica that have another name in `DOCUMENTS`, or none."""

DOCUMENTS: Final = pa.schema(
    [
        CHANGES.field("key"),
        ("document", pa.string()),
        CHANGES.field("collection_id"),
        *(each for each in REPLICA if each.name not in _ELSEWHERE),
        *map(CHANGES.field, ("key_bytes", "value")),
    ]
)
"""One row per document: ``document`` is its text if it is JSON, ``value`` its bytes."""

_COLLECTION: Final = ["vbucket", "collection_id"]


def current_documents(changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the documents that remain after all ``changes``.

    The changes wait on disk until the last one comes; their keys and seqnos stay in memory.
    """
    with TemporaryFile(prefix="dcplake-read-") as file:
        heads = []
        with pa.ipc.new_stream(file, CHANGES) as waiting:
            for batch in changes:
                waiting.write_batch(batch)
                heads.append(batch.select(["kind", *_COLLECTION, "key", "seqno"]))
        if not heads:
            return
        is_current = _is_current(pa.Table.from_batches(heads))
        file.seek(0)
        begin = 0
        for batch in pa.ipc.open_stream(file):
            end = begin + batch.num_rows
            yield _documents(batch.filter(pa.array(is_current[begin:end])))
            begin = end


def _is_current(heads: pa.Table) -> NDArray[np.bool_]:
    """Return for each row whether it is its key's newest state, and was not flushed or dropped."""
    seqnos = pc.cast(heads["seqno"], pa.uint64()).fill_null(0).to_numpy()
    rows = heads.drop_columns("seqno").to_pandas().assign(seqno=seqnos)
    ends = rows[rows["kind"].eq(RowKind.SYSTEM_EVENT) & rows["collection_id"].notna()]
    items = rows[rows["kind"].isin(ITEM_KINDS)]
    ended_at = ends.groupby(_COLLECTION)["seqno"].max()
    ended_at = ended_at.reindex(pd.MultiIndex.from_frame(items[_COLLECTION]), fill_value=0)
    newest_at = items.groupby([*_COLLECTION, "key"])["seqno"].transform("max")
    is_newest = items["seqno"].eq(newest_at) & items["seqno"].gt(ended_at.to_numpy())
    found = np.zeros(len(rows), np.bool_)
    found[items.index[is_newest & items["kind"].eq(RowKind.MUTATION)]] = True
    return found


def _documents(stored: pa.RecordBatch) -> pa.RecordBatch:
    pairs = zip(stored["value"].to_pylist(), stored["datatype"].to_pylist(), strict=True)
    texts = pa.array((_text(*pair) for pair in pairs), pa.string())
    names = [name for name in DOCUMENTS.names if name != "document"]
    return stored.select(names).add_column(1, "document", texts)


def _text(value: bytes | None, datatype: int) -> str | None:
    """Return a document as text if it is JSON, even if the server has not recognised it."""
    if not value or datatype > Datatype.JSON:
        return None
    try:
        if datatype != Datatype.JSON:
            json_tree(value, MAX_INFLATED_BYTES)
        return value.decode()
    except ValueError:
        return None


FORMAT: Final = "dcp"
_NO_ROUND: Final = 0


class DcpDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """Return the columns of `DOCUMENTS`.

        Spark asks for them when the format is loaded, and for a reader only later, so options are
        checked here.

        Raises:
            ConfigError: an unknown option, or a value of the wrong type.
        """
        read_options(self.options)
        return spark_ddl(DOCUMENTS)

    def reader(self, schema: "StructType") -> "DcpReader":
        del schema
        settings = read_options(self.options)
        return DcpReader(settings, source_access(settings, change_streams=False))


class DcpReader(DataSourceReader):
    def __init__(self, settings: Settings, access: SourceAccess) -> None:
        self._settings = settings
        self._access = access

    def partitions(self) -> list[InputPartition]:
        """Plan the read of the cluster's present documents; each value is a `TaskPlan`.

        Raises:
            NodeUnavailableError: some vbuckets cannot be read.
        """
        cluster = query_cluster(self._access)
        rounds = self._settings.round
        document_filter = filter_of(None, self._settings, cluster.manifest)
        lake_state = LakeState("read", _NO_ROUND, document_filter=document_filter)
        flow = self._access.flow_control
        plan = plan_round(lake_state, cluster, rounds, flow, slots=0)
        if plan.left_out:
            raise NodeUnavailableError(
                "some vbuckets cannot be read:\n" + "\n".join(left_out_lines(plan.left_out))
            )
        return [] if isinstance(plan, Idle) else [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the documents of one task.

        Raises:
            NodeUnavailableError: a vbucket ended before its target.
        """
        yield from current_documents(self._changes(partition.value))

    def _changes(self, task: TaskPlan) -> Iterator[pa.RecordBatch]:
        name = f"dcplake-read-t{task.index}"
        receiver = TaskReceiver(task, _NO_ROUND, UNLIMITED, self._access, name)
        yield from receiver.stream()
        for vbucket, result in receiver.results.items():
            if result.outcome not in (Outcome.REACHED, Outcome.CAUGHT_UP):
                raise NodeUnavailableError(
                    f"vbucket {vbucket}: {result.reason or result.outcome}: {result.detail}"
                )


def read_options(options: Mapping[str, str]) -> Settings:
    of_source = {key.name for key in shown_settings(SourceSettings)}
    overrides: dict[str, object] = {}
    if not any(name.startswith("filter.") for name in options):  # then all that is there
        overrides |= {"filter.exclude_keys": "", "filter.system_xattrs": "true"}
    for name, value in options.items():
        if name in of_source:
            overrides[f"source.{name}"] = value
        elif "." in name:
            overrides[name] = value
        else:
            raise ConfigError(
                f'format "{FORMAT}": unknown option {name!r}{did_you_mean(name, of_source)}, '
                f"expected {', '.join(sorted(of_source))}, or another setting as section.key"
            )
    return load_settings(None, {}, overrides)
