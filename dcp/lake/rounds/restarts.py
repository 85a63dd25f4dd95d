"""Decides which vbuckets begin a new epoch with the next round, and why. Pure.

Each provider looks at the facts of the lake. It asks for restarts, or says why a vbucket cannot
restart. A vbucket that has not started has no rows to read again.
"""

from collections.abc import Callable, Iterable
from typing import Final

from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.tables.vbucket_state import Restart, RestartReason

Provider = Callable[[LakeState], Iterable[Restart | LeftOut]]


def refused_rollbacks(lake: LakeState) -> list[LeftOut]:
    """Leave out the vbuckets with a rollback order that cannot be followed.

    A resync and a stale replica table lift the order: they read the vbucket from seqno 0.
    """
    lifted = {*lake.resyncs, *lake.stale}
    refused = (each for each in lake.rollbacks if isinstance(each, LeftOut))
    return [each for each in refused if each.vbucket not in lifted]


def _changed_filter(lake: LakeState) -> list[Restart]:
    unread = (state for state in lake.states.values() if not lake.document_filter.has_read(state))
    return [Restart(state.vbucket, RestartReason.FILTER) for state in unread]


def _resyncs(lake: LakeState) -> list[Restart]:
    return [Restart(vb, RestartReason.RESYNC) for vb in lake.resyncs if lake.has_started(vb)]


def _stale_vbuckets(lake: LakeState) -> list[Restart]:
    return [Restart(vb, RestartReason.STALE) for vb in lake.stale if lake.has_started(vb)]


def _followed_rollbacks(lake: LakeState) -> list[Restart]:
    followed = (each for each in lake.rollbacks if isinstance(each, Restart))
    return [each for each in followed if lake.has_started(each.vbucket)]


def _backfills(lake: LakeState) -> list[Restart]:
    beginning = () if lake.backfill is None else lake.backfill.beginning
    return [Restart(vb, RestartReason.BACKFILL) for vb in beginning if lake.has_started(vb)]


PROVIDERS: Final[tuple[Provider, ...]] = (
    refused_rollbacks,
    _changed_filter,
    _resyncs,
    _stale_vbuckets,
    _followed_rollbacks,
    _backfills,
)
"""The order of precedence: the first provider that names a vbucket decides."""


def restarts_of(lake: LakeState) -> dict[int, Restart | LeftOut]:
    """Return the restarts by vbucket. The epoch of a vbucket without an entry goes on."""
    answers = (each for ask in reversed(PROVIDERS) for each in ask(lake))
    return {each.vbucket: each for each in answers}  # the first provider's come last and override
