"""Sends OpenLineage events of rounds and applies to where the environment says.

The variables are OpenLineage's own (``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG``, ...), which its
client reads; without them nothing is sent. A receiver that is out of reach holds no round up.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dcp import __version__
from dcp.errors import ConfigError
from dcp.installation import how_to_install
from dcp.lake.config.lake_root import local_root
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.log.applied import AppliedVersion
from dcp.lake.rounds.observer import Observer, PassingObserver
from dcp.lake.rounds.progress import RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.tables.location import LakeLocation
from dcp.lake.tables.opening import lake_location
from dcp.lake.tables.tables import CHANGES_TABLE

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent
    from openlineage.client.facet_v2 import DatasetFacet, OutputDatasetFacet, RunFacet

_LOG = logging.getLogger(__name__)
_DESTINATIONS: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
"""The variables that say where events go; of the last also those that begin with it."""
_MOST_WAITING: Final = 100
"""The events that may wait for a slow receiver; further ones are dropped."""
_LAST_SECONDS: Final = 10.0
"""The time that the end of a run waits for them."""


@contextmanager
def sending_lineage(observer: Observer, settings: Settings) -> Iterator[Observer]:
    """Give an observer that also sends events, where the environment says where to.

    At the end it hears that the run is over.

    Raises:
        ConfigError: OpenLineage's own configuration is wrong.

    """
    client = _client()
    if client is not None:
        events = LineageEvents(settings.source, lake_location(settings))
        observer = LineageObserver(observer, events, client)
    try:
        yield observer
    finally:
        observer.ended()


def _client() -> "OpenLineageClient | None":
    if not any(name.startswith(_DESTINATIONS) for name in os.environ):
        return None
    try:
        from openlineage.client import OpenLineageClient
    except ModuleNotFoundError as error:
        _LOG.warning(
            "the environment asks for OpenLineage events, but there is no module %s: none are "
            "sent; run %s",
            error.name,
            how_to_install("lineage"),
        )
        return None
    try:
        return OpenLineageClient()
    except Exception as error:  # of the file's parser, or a transport that is not installed
        raise ConfigError(f"OpenLineage's configuration (OPENLINEAGE_...): {error}") from error


@dataclass(frozen=True, slots=True)
class _Step:
    """One event of a run that writes a table: ``START``, ``COMPLETE`` or ``FAIL``."""

    state: str
    run_id: str
    table: str
    version: int | None = None
    rows: int | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class LineageObserver(PassingObserver):
    """Passes on what it hears, and sends it as events, one after the other by another thread.

    A round starts a run of the job ``BUCKET.changes``, which its commit completes; otherwise it has
    failed. An apply is a run of ``BUCKET.TABLE`` that is complete.
    """

    def __init__(
        self, inner: Observer, events: "LineageEvents", client: "OpenLineageClient"
    ) -> None:
        """Begin; nothing is sent yet."""
        super().__init__(inner)
        self._events, self._client = events, client
        self._steps: Queue[_Step | None] = Queue(_MOST_WAITING)
        self._is_told = False
        self._round_id: str | None = None
        # The process may end while it waits for a receiver that does not answer.
        self._sender = Thread(target=self._send_all, name="openlineage", daemon=True)
        self._sender.start()

    def planned(self, plan: RoundPlan, progress: RoundProgress | None) -> None:
        """Start the round's run; the one before has failed if it was not committed."""
        self._fail_round()
        self._round_id = str(uuid4())
        self._send(_Step("START", self._round_id, CHANGES_TABLE))
        super().planned(plan, progress)

    def committed(self, report: RoundReport) -> None:
        """Complete it."""
        run_id, self._round_id = self._round_id or str(uuid4()), None
        self._send(_Step("COMPLETE", run_id, CHANGES_TABLE, report.version, report.rows))
        super().committed(report)

    def applied(self, version: AppliedVersion) -> None:
        """Send a run of the table's job."""
        changed = version.inserted + version.updated + version.deleted
        rows = version.rewritten or changed
        self._send(_Step("COMPLETE", str(uuid4()), version.table, version.version, rows))
        super().applied(version)

    def ended(self) -> None:
        """Wait a while for what is still to be sent."""
        self._fail_round()
        deadline = monotonic() + _LAST_SECONDS
        with suppress(Full):
            self._steps.put(None, timeout=_LAST_SECONDS)
        self._sender.join(max(0.0, deadline - monotonic()))
        super().ended()

    def _fail_round(self) -> None:
        if self._round_id is not None:
            self._send(_Step("FAIL", self._round_id, CHANGES_TABLE))
            self._round_id = None

    def _send(self, step: _Step) -> None:
        try:
            self._steps.put_nowait(step)
        except Full:
            self._tell(f"{_MOST_WAITING} wait for the receiver already")

    def _send_all(self) -> None:
        while (step := self._steps.get()) is not None:
            try:
                self._client.emit(self._events.event(step))
                self._is_told = False
            except Exception as error:  # of whichever transport it is: the run is worth more
                self._tell(error)
        self._client.close(_LAST_SECONDS)

    def _tell(self, reason: object) -> None:
        if not self._is_told:
            _LOG.warning("OpenLineage events cannot be sent; the run goes on: %s", reason)
        self._is_told = True


class LineageEvents:
    """Builds the events of one lake: the bucket is read by rounds, ``changes`` by applies."""

    def __init__(self, source: SourceSettings, location: LakeLocation) -> None:
        """Begin; ``OPENLINEAGE_NAMESPACE`` and ``OPENLINEAGE_PARENT_ID`` count as for Spark."""
        self._source, self._location = source, location
        self._namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
        self._parent = os.environ.get("OPENLINEAGE_PARENT_ID", "").rsplit("/", 2)

    def event(self, step: _Step) -> "RunEvent":
        """Return the event of a step."""
        from openlineage.client import event_v2 as lineage
        from openlineage.client.facet_v2 import (
            dataset_version_dataset,
            output_statistics_output_dataset,
            parent_run,
        )

        run_facets: dict[str, RunFacet] = {}
        facets: dict[str, DatasetFacet] = {}
        output_facets: dict[str, OutputDatasetFacet] = {}
        if len(self._parent) == 3:
            namespace, name, run_id = self._parent
            run_facets["parent"] = parent_run.ParentRunFacet(
                parent_run.Run(run_id), parent_run.Job(namespace, name)
            )
        if step.version is not None:
            facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
                str(step.version)
            )
            statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
            output_facets["outputStatistics"] = statistics(rowCount=step.rows)
        is_round = step.table == CHANGES_TABLE
        read = self._bucket() if is_round else table_name(self._location, CHANGES_TABLE)
        return lineage.RunEvent(
            eventTime=step.at.isoformat(),
            eventType=lineage.RunState(step.state),
            producer=f"urn:dcplake:{__version__}",
            run=lineage.Run(step.run_id, run_facets),
            job=lineage.Job(self._namespace, f"{self._source.bucket}.{step.table}"),
            inputs=[lineage.InputDataset(*read)],
            outputs=[
                lineage.OutputDataset(
                    *table_name(self._location, step.table),
                    facets=facets,
                    outputFacets=output_facets,
                )
            ],
        )

    def _bucket(self) -> tuple[str, str]:
        host, port = self._source.connection_string().hosts[0]
        place = f"[{host}]" if ":" in host else host
        return f"couchbase://{place}{f':{port}' if port else ''}", self._source.bucket


def table_name(location: LakeLocation, table: str) -> tuple[str, str]:
    """Return the namespace and name of a table, as OpenLineage's naming has it for its place."""
    if location.schema is not None:
        catalog, _, schema = location.schema.rpartition(".")
        return catalog or "spark_catalog", f"{schema}.{table}"
    path = location.path(table)
    if (folder := local_root(path)) is not None:
        return "file", str(folder)
    scheme, _, rest = path.partition("://")
    store, _, name = rest.partition("/")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{store}", name
