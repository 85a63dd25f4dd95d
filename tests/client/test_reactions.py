"""The reaction tables name every reason and every status that a stream request can meet."""

import pytest

from dcp.client.reactions import ENDINGS, REFUSALS, Reaction, end_reason_name
from dcp.wire.vocabulary import EndReason, Status


def test_every_end_reason_has_a_reaction() -> None:
    assert set(ENDINGS) == set(EndReason)


def test_success_and_rollback_are_no_refusals() -> None:
    assert not {Status.SUCCESS, Status.ROLLBACK} & set(REFUSALS)


@pytest.mark.parametrize(
    ("status", "reaction"),
    [
        (Status.NOT_MY_VBUCKET, Reaction.REROUTE),
        (Status.ETMPFAIL, Reaction.RETRY),
        (Status.EBUSY, Reaction.RETRY),
        (Status.ENOMEM, Reaction.RETRY),
        (Status.ERANGE, Reaction.STOP),
        (Status.EACCESS, Reaction.FAIL_BUCKET),
    ],
)
def test_refusals(status: Status, reaction: Reaction) -> None:
    assert REFUSALS[status] is reaction


def test_names_for_people() -> None:
    assert end_reason_name(2) == "STATE_CHANGED (2)"
    assert end_reason_name(99) == "unknown reason (99)"
