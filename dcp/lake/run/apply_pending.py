"""Applies what a lake has received to its replica tables (``dcplake apply``).

It is the other half of runs whose ``apply.when`` is never. It reads the lake alone: the cluster may
be out of reach, unless ``policy.persist_to`` lets it ask what is on disks.
"""

import secrets
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from dcp.lake.apply.applier import Applier
from dcp.lake.config.settings import Settings
from dcp.lake.log.applied import AppliedVersion
from dcp.lake.log.changes import latest_round
from dcp.lake.maintain.horizon_guard import HorizonGuard
from dcp.lake.quality.gate import QualityGate
from dcp.lake.receive.remembered_nodes import RememberedNodes
from dcp.lake.receive.source_access import source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.run.persistence_gate import PersistenceGate
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.opening import lake_locked, spark_of
from dcp.lake.tables.tables import open_lake, replicas_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def apply_pending(
    settings: Settings, *, observer: Observer, spark: "SparkSession | None" = None
) -> list[AppliedVersion]:
    """Bring every replica table to the newest round, whatever ``apply.when`` says.

    Returns:
        The new versions; none where nothing waits.

    Raises:
        LakeError: there is no lake, or somebody changed its tables.
        FencedError: another driver works on the lake.
        IncompleteRunError: ``policy.persist_to`` holds the apply back.
        QualityError: ``quality.gate`` holds an apply back.

    """
    with lake_locked(settings, "dcplake apply") as location:
        lake = open_lake(spark_of(settings, spark), location)
        with lake.look():
            guard = HorizonGuard(lake, Horizon.of_hours(settings.lake.horizon_hours))
            guard.check()
            rule = replace(settings.apply, when="every_round")
            gate = QualityGate.of_setting(settings.quality.gate)
            with closing(
                Applier(lake, rule, secrets.token_hex(8), observer, guard, gate.may_publish)
            ) as applier:
                applier.know(replicas_in(lake))
                persistence = PersistenceGate(
                    lake, settings, source_access(settings), lambda: RememberedNodes.of(lake)
                )
                newest = latest_round(lake)
                may = persistence.lets_pass(applier.applied_round, newest, waits=True)
                made = applier.apply(newest, force=True) if may else []
            persistence.refuse_held()
            gate.refuse_held()
            return made
