"""KV writes with a durability level, answered only after commit or abort."""

from collections.abc import Callable

from dcp.server.commands.session import Session
from dcp.server.model.versions import Version
from dcp.server.vbucket.documents import DocumentStore
from dcp.server.vbucket.request_framing import DurabilityRequirement
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Status


def write_durably(
    session: Session,
    frame: Frame,
    vbucket: Vbucket,
    requirement: DurabilityRequirement,
    command: Callable[[DocumentStore], Version],
    reply: Callable[[Version], None],
) -> None:
    """Run ``command``, which prepares a write; ``reply`` answers after its commit.

    Later requests of the session wait for it.

    Raises:
        DocumentError: nothing was prepared: too few copies, or the command refuses.
    """
    bucket = session.bucket
    bucket.sync_writes.require_possible(vbucket.id)
    prepare = bucket.writes.write_to(vbucket, command)
    go_on = session.wait()

    def answer(status: Status) -> None:
        if status is Status.SUCCESS:
            go_on(lambda: reply(prepare))
        else:
            go_on(lambda: session.refuse(frame, status))

    deadline = bucket.now() + requirement.timeout_seconds
    bucket.sync_writes.track(prepare, deadline, answer)
