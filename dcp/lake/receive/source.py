"""The Spark data source ``dcp``: reads a bucket's current documents, without a lake.

    spark.read.format("dcp").option("seeds", "host:11210").option("bucket", "b")
        .option("username", "u").option("password_env", "CB_PASSWORD").load()

Options are the keys of the configuration's ``source`` section, and any other setting as
``section.key``. The password is no option, since Spark would carry it to each task: tasks find it
in the environment or the file that ``password_env`` or ``password_file`` names.

Each vbucket is read to a snapshot end, so its documents are a state that existed. With the option
``rows`` as ``changes`` come the rows that a first round would write to that table, of round 0, in
place of the documents: all that the streams bring. Nothing is kept: a lake is filled by rounds
(`dcp.lake.run.run`). Unlike a round this read is all or nothing: a vbucket that cannot be read to
its end fails it.

PySpark finds the format by itself, in ``pyspark_dcp``. It looks with the Python of
``PYSPARK_PYTHON``, else with the ``python3`` of the path, so that one must have dcplake.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dcp.errors import ConfigError, NodeUnavailableError
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.config.settings_load import load_settings
from dcp.lake.receive.current_documents import DOCUMENTS, current_documents
from dcp.lake.receive.receive import TaskReceiver
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.receive.stop_policy import UNLIMITED
from dcp.lake.rounds.planning import LakePosition, plan_round
from dcp.lake.rounds.round_plan import Idle, TaskPlan, left_out_lines
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.schema import CHANGES, spark_ddl
from dcp.suggestions import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT: Final = "dcp"
_NO_ROUND: Final = 0
_DEFAULT_TASKS: Final = 2

_ROWS: Final = "rows"
_DOCUMENTS: Final = "documents"
_CHANGES: Final = "changes"


class DcpSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """Return the columns: `DOCUMENTS`, or those of ``changes``.

        Spark asks for them when the format is loaded, and for a reader only later, so options are
        checked here.

        Raises:
            ConfigError: an unknown option, or a value of the wrong type.
        """
        read_options(self.options)
        return spark_ddl(DOCUMENTS if _wants_documents(self.options) else CHANGES)

    def reader(self, schema: "StructType") -> "DcpReader":
        del schema
        settings = read_options(self.options)
        wants_documents = _wants_documents(self.options)
        access = source_access(settings, change_streams=not wants_documents)
        return DcpReader(settings, access, wants_documents)


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task's vbuckets, without secrets."""

    task: TaskPlan


class DcpReader(DataSourceReader):
    def __init__(self, settings: Settings, access: SourceAccess, wants_documents: bool) -> None:
        self._settings = settings
        self._access = access
        self._wants_documents = wants_documents

    def partitions(self) -> list[InputPartition]:
        """Plan the reading of all that the cluster holds now.

        Raises:
            NodeUnavailableError: some vbuckets cannot be read.
        """
        cluster = query_cluster(self._access)
        rounds = self._settings.round
        slots = rounds.tasks or _DEFAULT_TASKS
        document_filter = DocumentFilter.resolve(self._settings.filter, cluster.manifest)
        position = LakePosition("read", _NO_ROUND, document_filter=document_filter)
        flow = self._access.flow_control
        plan = plan_round(position, cluster, rounds, flow, slots)
        if plan.left_out:
            raise NodeUnavailableError(
                "some vbuckets cannot be read:\n" + "\n".join(left_out_lines(plan.left_out))
            )
        return [] if isinstance(plan, Idle) else [TaskPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises:
            NodeUnavailableError: a vbucket ended before its target.
        """
        assert isinstance(partition, TaskPartition)
        changes = self._changes(partition.task)
        yield from current_documents(changes) if self._wants_documents else changes

    def _changes(self, task: TaskPlan) -> Iterator[pa.RecordBatch]:
        name = f"dcplake-read-t{task.index}"
        receiver = TaskReceiver(task, _NO_ROUND, UNLIMITED, self._access, name)
        yield from receiver.stream()
        for vbucket, result in receiver.results.items():
            if result.outcome not in (Outcome.REACHED, Outcome.CAUGHT_UP):
                raise NodeUnavailableError(
                    f"vbucket {vbucket}: {result.reason or result.outcome}: {result.detail}"
                )


def _wants_documents(options: Mapping[str, str]) -> bool:
    rows = options.get(_ROWS, _DOCUMENTS)
    if rows not in (_DOCUMENTS, _CHANGES):
        raise ConfigError(
            f'format "{FORMAT}": option {_ROWS}: found {rows!r}, '
            f"expected {_DOCUMENTS} or {_CHANGES}"
        )
    return rows == _DOCUMENTS


def read_options(options: Mapping[str, str]) -> Settings:
    of_source = {key.name for key in fields(SourceSettings)}
    overrides: dict[str, object] = {}
    if not any(name.startswith("filter.") for name in options):  # then all that is there
        overrides |= {"filter.exclude_keys": "", "filter.system_xattrs": "true"}
    for name, value in options.items():
        if name == _ROWS:
            continue
        if name in of_source:
            overrides[f"source.{name}"] = value
        elif "." in name:
            overrides[name] = value
        else:
            known = sorted([*of_source, _ROWS])
            raise ConfigError(
                f'format "{FORMAT}": unknown option {name!r}{did_you_mean(name, known)}, '
                f"expected {', '.join(known)}, or another setting as section.key"
            )
    return load_settings(None, {}, overrides)
