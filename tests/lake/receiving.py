"""Helpers of tests that receive from the real producer, with or without Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dcp.lake.adapters.opening import opened_store
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.config.settings import SECTIONS, Settings, SourceSettings
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.receive.task_receiver import TaskReceiver
from dcp.lake.rounds.backfill_plan import BackfillPlan
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import RoundPlan, TaskPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.lake_tables import LakeTables, open_lake
from dcp.lake.tables.round_record import states_from_rows
from dcp.lake.tables.schema import CHANGES
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.producer.cluster import ProducerCluster
from tests.quick_spark import QUICK_CONF, spark_conf_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD_FILE = "password"
USER, PASSWORD = "Administrator", "password"

SMALL_FLOW: Final = {"window_bytes": 4096, "batch_bytes": 1024}
"""Settings of flow control with which a few hundred small documents take several batches."""
QUICK_SOURCE: Final = {"connect_timeout_seconds": 3.0, "bootstrap_timeout_seconds": 3.0}
QUICK_ROUND: Final = {"node_deadline_seconds": 5.0}
"""For rounds that lose a node; the others have as long, on a busy machine too."""


def settings_for(cluster: ProducerCluster, folder: Path, **sections: Mapping[str, Any]) -> Settings:
    """Return settings that read ``cluster`` into ``folder``/lake, patient with its nodes."""
    named = {"bucket": cluster.settings.bucket, **sections.get("source", {})}
    return settings_of(cluster.seeds, folder, **(sections | {"source": named}))


def settings_of(seeds: Sequence[str], folder: Path, **sections: Mapping[str, Any]) -> Settings:
    """Return settings that read the cluster at ``seeds``; see `settings_for`."""
    secret = folder / PASSWORD_FILE
    secret.write_text(PASSWORD + "\n")
    given: dict[str, dict[str, Any]] = {
        "source": {
            "seeds": tuple(seeds),
            "username": USER,
            "password_file": str(secret),
            "noop_interval_seconds": 1.0,
        },
        "round": {
            "tasks": 4096,  # one per core, however few documents a test has
            "quiet_seconds": 1.0,
            "node_deadline_seconds": 90.0,
            "target_seconds": 240.0,
        },
        "lake": {"root": str(folder / "lake")},
    }
    for name, keys in sections.items():
        given[name] = given.get(name, {}) | dict(keys)
    made: dict[str, Any] = {name: SECTIONS[name](**keys) for name, keys in given.items()}
    return Settings(**made)


def write_config(
    source: SourceSettings, root: str, options: Mapping[str, str], master: str, folder: Path
) -> Path:
    """Write the configuration of a lake in an object store, for commands in other processes."""
    lines = "\n".join(f'{name} = "{value}"' for name, value in options.items())
    file = folder / "dcplake.toml"
    file.write_text(
        f"""
[source]
seeds = {list(source.seeds)}
username = "{source.username}"
password_file = "{source.password_file}"
[round]
quiet_seconds = 0.2
[lake]
root = "{root}"
[lake.storage_options]
{lines}
[spark]
master = "{master}"
"""
        + spark_conf_toml(QUICK_CONF)
    )
    return file


def overrides_of(settings: Settings) -> list[str]:
    """Return the options by which a command reads that cluster into that lake."""
    values = {
        "source.seeds": ",".join(settings.source.seeds),
        "source.username": settings.source.username,
        "source.password_file": settings.source.password_file,
        "source.noop_interval_seconds": settings.source.noop_interval_seconds,
        "round.quiet_seconds": settings.round.quiet_seconds,
        "round.target_bytes": settings.round.target_bytes,
        "round.minimum_interval_seconds": settings.round.minimum_interval_seconds,
        "flow_control.window_bytes": settings.flow_control.window_bytes,
        "flow_control.batch_bytes": settings.flow_control.batch_bytes,
        "lake.root": settings.lake.root,
        "lake.lock": str(settings.lake.lock).lower(),
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def store_without_spark(settings: Settings) -> SparkStore:
    """Return the store of these settings, in which nothing may start Spark."""
    with opened_store(settings, starts_spark=False) as store:
        return store


def lake_of(settings: Settings, spark: "SparkSession | None" = None) -> LakeTables:
    """Return the lake of these settings, in ``spark`` itself: no session beside it is made."""
    store = store_without_spark(settings)
    return open_lake(store if spark is None else replace(store, start_spark=lambda: spark))


class RoundsInProcess:
    """Rounds without Spark: tasks run one after the other, rows stay in memory."""

    def __init__(self, settings: Settings, slots: int = 1) -> None:
        self.settings = settings
        self.slots = slots
        self.access: SourceAccess = source_access(settings)
        self.states: dict[int, LakeVbucketState] = {}
        self.round = 0
        self.rows: list[dict[str, Any]] = []
        """How far the last round was behind each batch, task by task."""

    def plan(self, backfill: BackfillPlan | None = None) -> RoundPlan | None:
        cluster = query_cluster(self.access)
        document_filter = DocumentFilter.resolve(
            self.settings.filter, cluster.manifest, privacy=self.settings.privacy
        )
        lake_state = LakeState(
            "0123456789abcdef",
            self.round,
            self.states,
            backfill=backfill,
            document_filter=document_filter,
        )
        flow = self.settings.flow_control
        plan = plan_round(lake_state, cluster, self.settings.round, flow, self.slots)
        return plan if isinstance(plan, RoundPlan) else None

    def run(self, plan: RoundPlan | None = None) -> list[dict[str, Any]]:
        """Run one round; return its rows. Its positions are checked for being whole."""
        plan = plan or self.plan()
        assert plan is not None, "found nothing to do, expected a round"
        name = f"test-r{plan.round}"
        tasks = [
            TaskReceiver(each, plan.round, plan.budget, self.access, name) for each in plan.tasks
        ]
        return self.keep(plan, [batch for task in tasks for batch in task.batches()])

    def keep(self, plan: RoundPlan, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
        """Make what a round brought durable; return its rows."""
        assert all(batch.schema == CHANGES for batch in batches)
        rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
        self.round = plan.round
        self.states = states_from_rows(row for row in rows if row["kind"] == "position")
        self.rows += rows
        return rows

    def receiver(self, plan: RoundPlan, task: TaskPlan) -> TaskReceiver:
        return TaskReceiver(task, plan.round, plan.budget, self.access, f"test-r{plan.round}")

    def with_budget(self, target_bytes: int) -> None:
        rounds = replace(self.settings.round, target_bytes=target_bytes)
        self.settings = replace(self.settings, round=rounds)


def item_rows(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the document rows."""
    return [row for row in rows if row["kind"] in ("mutation", "deletion", "expiration")]


def documents_at(
    rows: Iterable[Mapping[str, Any]], vbucket: int, seqno: int
) -> dict[bytes, tuple[int, bytes]]:
    """Return key -> (seqno, value) of a vbucket by the rows up to ``seqno``, the slow way."""
    newest: dict[bytes, Mapping[str, Any]] = {}
    for row in item_rows(rows):
        if row["vbucket"] == vbucket and row["seqno"] <= seqno:
            key = row["key_bytes"] or row["key"].encode()
            if key not in newest or newest[key]["seqno"] < row["seqno"]:
                newest[key] = row
    return {
        key: (int(row["seqno"]), row["value"])
        for key, row in newest.items()
        if row["kind"] == "mutation"
    }


def source_at(cluster: ProducerCluster, vbucket: int, seqno: int) -> dict[bytes, tuple[int, bytes]]:
    """Return the same from the producer."""
    return {
        key: (document.seqno, document.value)
        for key, document in cluster.state_at(vbucket, seqno).items()
    }
