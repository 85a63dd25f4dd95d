"""A lake in Python: the commands as methods, with objects as results.

Each method is the command of its name and reads the lake anew; docs/howto/python.md has examples.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from dcp.errors import ConfigError, SetupError
from dcp.installation import how_to_install
from dcp.lake.adapters.opening import opened_lake, opened_store
from dcp.lake.config.settings import Settings
from dcp.lake.config.settings_load import load_settings
from dcp.lake.config.table_names import CHANGES_TABLE, DOCS_TABLE
from dcp.lake.monitor.figures_reader import read_figures
from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.lake.query.answers import answer, errors_on_one_line
from dcp.lake.query.cuts import Cut, find_cut
from dcp.lake.query.plain_names import show_for_queries, show_to_user
from dcp.lake.rounds.round_plan import Idle, RoundPlan
from dcp.lake.run.driver import RunReport
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.lake.spark.session import (
    active_session_kept,
    end_session,
    session_of_user,
    started_session,
)
from dcp.lake.store.sql import quoted
from dcp.lake.tables.lake_tables import LEDGERS, LakeTables, replicas_in
from dcp.lake.verify.compare import verify
from dcp.lake.verify.report import DEFAULT_KEYS, VerifyReport

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

_OWN_TABLES: Final = (CHANGES_TABLE, *LEDGERS)
"""The tables beside the replicas; a lake has some of them only when they are needed."""


def open(
    root: str | Path | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    spark: SparkSession | None = None,
) -> "Lake":
    """Return a lake, which need not exist: the first ``run`` makes it. Nothing is read.

    Args:
        root: its folder or URI: the setting ``lake.root``.
        config: a TOML file, as for the commands; the environment overrides it.
        settings: further ones by their names (``{"source.bucket": "travel"}``); they override both.
        spark: your session; dcplake works in a session of its own beside it, and does not change
            its settings. Without one, the active session when Spark is needed. Without an active
            one dcplake starts a session, which ``close`` stops.

    Raises:
        ConfigError: a setting is unknown, of the wrong type or out of range.
    """
    given = dict(settings or {})
    if root is not None:
        given["lake.root"] = str(root)
    return Lake(load_settings(None if config is None else Path(config), overrides=given), spark)


class Lake:
    """A lake and the bucket that it replicates; a context manager, which closes it.

    Spark starts when a method needs it. For a lake in a folder of this machine, ``plan``,
    ``status``, ``cut``, ``tables``, ``to_arrow`` and ``to_polars`` do not need it.
    """

    def __init__(self, settings: Settings, spark: SparkSession | None = None) -> None:
        """See `open`."""
        self.settings = settings
        self._spark = spark
        self._started: SparkSession | None = None

    def __enter__(self) -> "Lake":
        """Return the lake."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the lake."""
        self.close()

    def __repr__(self) -> str:
        """Name the place and the bucket."""
        with opened_store(self.settings, starts_spark=False) as store:
            return f"Lake({str(store.location)!r}, {self.settings.source.bucket!r})"

    def close(self) -> None:
        """Stop the Spark session, if this lake started it. A later method starts another."""
        started, self._started = self._started, None
        if started is not None:
            end_session(started)

    def plan(self) -> RoundPlan | Idle:
        """Return what the next round would stream, or why there is nothing to do.

        Its ``outlook`` lists what will be read again from the beginning, and the tables that get
        other typed columns.

        Raises:
            ConfigError: a run would refuse the settings for this cluster or table.
            SourceError: the cluster cannot be asked.
            LakeError: the place holds no lake, or a lake of another bucket.
        """
        with self._noting_spark():
            return preview(self.settings, self._spark)

    def run(self, *, once: bool = True, stop: threading.Event | None = None) -> RunReport:
        """Replicate what the cluster holds at this moment; without ``once``, without end.

        ``stop`` ends a run after the running round. Without it an interrupt does (SIGINT: a
        notebook's stop button). A second interrupt ends the run at once, which loses nothing
        durable.

        Raises:
            IncompleteRunError: some vbuckets could not be read; all others are applied.
            StoppedError: a run with ``once`` was stopped before its end.
            FencedError: another driver works on the lake.
            SourceError: the cluster cannot be read at all.
            LakeError: the lake holds another bucket, or somebody changed its tables.
        """
        with self._noting_spark():
            return run(self.settings, once=once, stop=stop, spark=self._spark)

    def status(self) -> LakeFigures:
        """Return the state of the lake and what it waits for, without asking the cluster.

        Raises:
            LakeError: there is no lake.
        """
        with self._noting_spark():
            return read_figures(self.settings, self._spark, searches=False)

    def verify(
        self, *, vbuckets: Collection[int] | None = None, keys: int = DEFAULT_KEYS
    ) -> VerifyReport:
        """Compare the replica tables with the bucket; ``result`` is ``equal`` if nothing differs.

        It streams the metadata of the whole bucket. Differences are no exception.

        Args:
            vbuckets: the vbuckets to compare; None means all.
            keys: the number of differing keys to list (all are counted).

        Raises:
            ConfigError: the bucket lacks a vbucket.
            SourceError: the cluster cannot be read at all.
            LakeError: there is no lake, or it holds another bucket.
        """
        with self._noting_spark():
            return verify(self.settings, vbuckets=vbuckets, keys=keys, spark=self._spark)

    def cut(self, round_number: int | None = None, *, as_of: datetime | None = None) -> Cut:
        """Return versions of all tables that hold the same round.

        Args:
            round_number: the round; None means the newest one that all tables hold.
            as_of: a time with its zone; the newest cut at that time.

        Raises:
            ConfigError: there is no such round, or none at that moment.
            LakeError: the tables hold no such round in common, or its files are gone.
        """
        if as_of is not None and (round_number is not None or as_of.tzinfo is None):
            found = f"round {round_number} and a time" if round_number is not None else repr(as_of)
            raise ConfigError(f"cut: found {found}, expected a round, or a time with its zone")
        with self._opened() as lake:
            return find_cut(lake, round_number, as_of)

    def tables(self) -> tuple[str, ...]:
        """Return the names of the existing tables: the replicas, ``changes`` and others.

        Raises:
            LakeError: there is no lake.
        """
        with self._opened() as lake:
            return _table_names(lake)

    def to_arrow(
        self,
        table: str = DOCS_TABLE,
        *,
        columns: Sequence[str] | None = None,
        where: str = "true",
        version: int | None = None,
    ) -> pa.Table:
        """Return a table, or a part of it, as Arrow. Unsigned 64-bit values are decimal128(20, 0).

        Args:
            table: one of ``tables()``.
            columns: the columns to read; None means all.
            where: a condition in SQL: ``"vbucket < 8 AND seqno > 100"``.
            version: of the table; None means the newest.

        Raises:
            ConfigError: there is no such table, column or version, or the condition is no SQL.
            LakeError: there is no lake, or its files are damaged or gone.
        """
        with self._opened() as lake:
            names = _table_names(lake)
            if table not in names:
                raise _unknown(f"{lake.location}: found no table {table!r}", names)
            with errors_on_one_line():
                schema = lake.table(table).columns(version)
            if unknown := set(columns or ()) - set(schema.names):
                raise _unknown(f"table {table}: found no columns {sorted(unknown)}", schema.names)
            wanted = schema if columns is None else pa.schema([schema.field(c) for c in columns])
            listed = ", ".join(f"t.{quoted(name)}" for name in wanted.names)
            with errors_on_one_line():
                return lake.table(table).query(
                    lambda name, _: f"SELECT {listed} FROM {name} AS t WHERE {where}",
                    wanted,
                    version,
                )

    def to_polars(
        self,
        table: str = DOCS_TABLE,
        *,
        columns: Sequence[str] | None = None,
        where: str = "true",
        version: int | None = None,
    ) -> "pl.DataFrame":
        """Return the same for Polars; unsigned 64-bit values are Decimal(20, 0).

        Raises:
            SetupError: Polars is not installed.
            ConfigError, LakeError: as of ``to_arrow``.

        """
        try:
            import polars as pl
        except ModuleNotFoundError as error:
            raise SetupError(
                f"Polars is missing (no module {error.name}): run {how_to_install('polars')}."
            ) from None
        return pl.DataFrame(self.to_arrow(table, columns=columns, where=where, version=version))

    def to_dataframe(self, table: str = DOCS_TABLE, *, version: int | None = None) -> "DataFrame":
        """Return a table or a view as a DataFrame of Spark; unsigned 64-bit values are decimals.

        Its session is yours, if you gave one or one is active; otherwise dcplake starts one. From
        then on that session knows the lake's tables and views by their names.

        Args:
            table: one of ``tables()``, or a view (``documents``, ``docs_live``, …).
            version: of a table; None means the newest.

        Raises:
            ConfigError: there is no such table, view or version.
            LakeError: there is no lake.
        """
        user = session_of_user(self._spark)
        with self._opened() as lake:
            shown = show_for_queries(lake) if user is None else show_to_user(lake, user)
            place = lake.table_sql(table) if table in _table_names(lake) else quoted(table)
            travel = "" if version is None else f" VERSION AS OF {int(version)}"
            return answer(shown.spark, f"SELECT * FROM {place}{travel}")

    @contextmanager
    def _noting_spark(self) -> Iterator[None]:
        """Note a session that starts in the context: this lake must stop it."""
        before = started_session()
        try:
            with active_session_kept():
                yield
        finally:
            after = started_session()
            if after is not before:
                self._started = after

    @contextmanager
    def _opened(self) -> Iterator[LakeTables]:
        with self._noting_spark(), opened_lake(self.settings, self._spark) as lake:
            yield lake


def _table_names(lake: LakeTables) -> tuple[str, ...]:
    """Return the existing tables, the replicas first."""
    replicas = (replica.name for replica in replicas_in(lake))
    return (*replicas, *(name for name in _OWN_TABLES if lake.table(name).exists()))


def _unknown(found: str, names: Iterable[str]) -> ConfigError:
    return ConfigError(f"{found}, expected one of {', '.join(names)}")
