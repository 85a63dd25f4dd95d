"""Sessions of the kinds that are recorded are repeated, with other numbers, clients, and orders.

They are our own producer's, so each is right by construction: what fails is the harness.
"""

from collections.abc import Callable

import pytest

from dcp.producer.model.bucket_type import BucketType
from tests.producer import data_scripts, server_scripts, stream_scripts
from tests.producer.recorded_client import TranscriptLine
from tests.producer.scripted_session import ScriptedSession
from tests.producer_conformance.conversation import Conversation
from tests.producer_conformance.rehearsal import rehearse

Script = Callable[[ScriptedSession], None]
VBUCKETS: dict[Script, int] = {
    stream_scripts.two_vbuckets_on_one_connection: 2,
    stream_scripts.a_window_of_two_streams: 2,
    stream_scripts.many_bursts_on_many_vbuckets: 8,
    data_scripts.statistics: 2,
    data_scripts.seqnos_by_state_and_collection: 4,
}
"""One where nothing is said."""
SCRIPTS: dict[str, Script] = {
    name.replace("_", " "): script
    for module in (stream_scripts, data_scripts, server_scripts)
    for name, script in vars(module).items()
    if getattr(script, "__module__", "") == module.__name__
}


def recorded(script: Script) -> list[TranscriptLine]:
    """Return the transcript of a session."""
    is_ephemeral = script is data_scripts.ephemeral
    kind = BucketType.EPHEMERAL if is_ephemeral else BucketType.COUCHBASE
    quota = 60_000 if script is server_scripts.a_cursor_is_dropped else 2**30
    session = ScriptedSession(VBUCKETS.get(script, 1), kind, quota)
    script(session)
    return session.r.lines


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_scripted_session_is_repeated(name: str) -> None:
    lines = recorded(SCRIPTS[name])
    found = list(rehearse(Conversation.read(lines)))
    assert [text for result in found for text in result.failures] == []
    said = sum(line.get("dir") == "s2c" for line in lines)
    assert sum(result.tally["compared"] for result in found) == said
