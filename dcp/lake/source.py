"""``spark.read.format("dcp")``: a bucket's history up to now as rows of ``changes``, for a look.

    spark.read.format("dcp").option("seeds", "host:11210").option("bucket", "b")
        .option("username", "u").option("password_env", "CB_PASSWORD").load()

Options are the keys of the configuration's ``source`` section, any other setting as
``section.key``, and ``password`` (Spark shows options of that name redacted). Rows have round 0.
Nothing is kept: a lake is filled by rounds (`dcp.lake.run`). Unlike a round this read is all or
nothing: a vbucket that cannot be read to its end fails it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dcp.errors import ConfigError, NodeUnavailableError
from dcp.lake.connect import look_at_cluster, source_access
from dcp.lake.ending import UNLIMITED
from dcp.lake.plan import Idle, LakePosition, TaskPlan, plan_round
from dcp.lake.plan_text import left_out_lines
from dcp.lake.receipt import Outcome
from dcp.lake.receive import SourceAccess, TaskReceiver
from dcp.lake.schema import CHANGES, spark_ddl
from dcp.lake.settings import Settings, SourceSettings
from dcp.lake.settings_load import load_settings
from dcp.protocol.credentials import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "dcp"
_NO_ROUND: Final = 0
_DEFAULT_TASKS: Final = 2


def register_source(spark: "SparkSession") -> None:
    """Make the format known to a session; harmless when it is already."""
    spark.dataSource.register(DcpSource)


class DcpSource(DataSource):
    """The format ``dcp``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns: those of ``changes``.

        Raises:
            ConfigError: an unknown option, or a value of the wrong type: here, since Spark asks for
                the columns when the format is loaded, and for a reader only when it reads.

        """
        read_options(self.options)
        return spark_ddl(CHANGES)

    def reader(self, schema: "StructType") -> "DcpReader":
        """Return the reader for the options given."""
        del schema
        settings, password = read_options(self.options)
        return DcpReader(settings, source_access(settings, password))


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task's vbuckets; no secret is in it."""

    task: TaskPlan


class DcpReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, settings: Settings, access: SourceAccess) -> None:
        self._rounds = settings.round
        self._access = access

    def partitions(self) -> list[InputPartition]:
        """Ask the cluster what it holds now, and share it out.

        Raises:
            NodeUnavailableError: some vbuckets cannot be read.

        """
        cluster = look_at_cluster(self._access)
        slots = self._rounds.tasks or _DEFAULT_TASKS
        plan = plan_round(LakePosition("read", _NO_ROUND), cluster, self._rounds, slots)
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
        name = f"dcplake-read-t{partition.task.index}"
        receiver = TaskReceiver(partition.task, _NO_ROUND, UNLIMITED, self._access, name)
        yield from receiver.stream()
        for vbucket, receipt in receiver.receipts.items():
            if receipt.outcome not in (Outcome.REACHED, Outcome.CAUGHT_UP):
                raise NodeUnavailableError(
                    f"vbucket {vbucket}: {receipt.reason or receipt.outcome}: {receipt.detail}"
                )


def read_options(options: Mapping[str, str]) -> tuple[Settings, Secret | None]:
    """Return the settings that the options make, and the password if it is among them.

    Raises:
        ConfigError: an unknown option, or a value of the wrong type.

    """
    of_source = {key.name for key in fields(SourceSettings)}
    overrides: dict[str, object] = {}
    password = None
    for name, value in options.items():
        if name == "password":
            password = Secret(value)
        elif name in of_source:
            overrides[f"source.{name}"] = value
        elif "." in name:
            overrides[name] = value
        else:
            raise ConfigError(
                f'format "{FORMAT}": unknown option {name!r}, expected password, '
                f"{', '.join(sorted(of_source))}, or another setting as section.key"
            )
    return load_settings(None, {}, overrides), password
