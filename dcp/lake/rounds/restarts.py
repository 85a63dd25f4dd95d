"""Decides which vbuckets begin a new epoch with the next round, and why. Pure.

Each provider looks at the facts of the lake. It asks for restarts, or says why a vbucket cannot
restart. `PROVIDERS` has their order of precedence: the first one that names a vbucket decides.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.tables.vbucket_state import Restart, RestartReason

Provider = Callable[[LakeState], Iterable[Restart | LeftOut]]


def refused_rollbacks(lake: LakeState) -> list[LeftOut]:
    """Leave out the vbuckets with a rollback order that cannot be followed.

    A resync and a stale replica lift the order: they read the vbucket from seqno 0.
    """
    lifted = {*lake.resyncs, *lake.stale}
    refused = (each for each in lake.rollbacks if isinstance(each, LeftOut))
    return [each for each in refused if each.vbucket not in lifted]


def _changed_filter(lake: LakeState) -> Iterable[Restart]:
    has_read = lake.document_filter.has_read
    unread = (vbucket for vbucket, state in lake.states.items() if not has_read(state))
    return (Restart(vbucket, RestartReason.FILTER) for vbucket in unread)


def _resyncs(lake: LakeState) -> Iterable[Restart]:
    return _read_again(lake, lake.resyncs, RestartReason.RESYNC)


def _stale_vbuckets(lake: LakeState) -> Iterable[Restart]:
    return _read_again(lake, lake.stale, RestartReason.STALE)


def _followed_rollbacks(lake: LakeState) -> Iterable[Restart]:
    followed = (each for each in lake.rollbacks if isinstance(each, Restart))
    return (each for each in followed if lake.has_started(each.vbucket))


def _backfills(lake: LakeState) -> Iterable[Restart]:
    beginning = () if lake.backfill is None else lake.backfill.beginning
    return _read_again(lake, beginning, RestartReason.BACKFILL)


PROVIDERS: Final[tuple[Provider, ...]] = (
    refused_rollbacks,
    _changed_filter,
    _resyncs,
    _stale_vbuckets,
    _followed_rollbacks,
    _backfills,
)


def restarts_of(lake: LakeState) -> dict[int, Restart | LeftOut]:
    """Return the restarts by vbucket. The epoch of a vbucket without an entry goes on."""
    answers = (each for ask in reversed(PROVIDERS) for each in ask(lake))
    return {each.vbucket: each for each in answers}  # the first provider comes last, and overrides


def _read_again(
    lake: LakeState, vbuckets: Collection[int], reason: RestartReason
) -> Iterable[Restart]:
    """Restart the vbuckets at 0. One that has not started has no rows to read again."""
    return (Restart(vbucket, reason) for vbucket in vbuckets if lake.has_started(vbucket))
