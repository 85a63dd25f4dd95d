"""Another process that hangs amid a move: the first process goes on without it."""

import asyncio

import pytest

from dcp.errors import SourceError
from dcp.producer.auth import (
    Accepted,
    Challenge,
    Outcome,
    Rejected,
    SaslConversation,
    UserStore,
    node_credentials,
)
from dcp.producer.bucket import Bucket
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.member_commands import LEAVE, TAKE
from dcp.producer.member_links import MemberLink, MemberLinks
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.order_connection import OrderConnection
from dcp.producer.remote_move import RemoteMove
from dcp.producer.settings import ClusterSettings
from dcp.protocol.credentials import Secret
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, Status

HERE, ELSEWHERE = 0, 1


class _EndlessLink(MemberLink):
    """To a process that answers everything, and is never done with what it began."""

    def __init__(self, bucket: Bucket, *, fails: bool) -> None:
        super().__init__(MemberLinks(bucket, lambda: None), ELSEWHERE)
        self.orders: list[bytes] = []
        self.is_asked = asyncio.Event()
        self._fails = fails
        self.number = 0

    async def order(self, name: bytes, value: bytes = b"") -> None:
        self.orders.append(name)
        if name == TAKE:
            self.number = MoveOrder.decode(value).number

    async def question(self, name: bytes) -> bytes:
        self.is_asked.set()
        if self._fails and LEAVE not in self.orders:
            raise SourceError("it does not answer")
        return MoveReport(self.number, (), is_over=False).encode()


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_that_never_leaves_is_waited_for_so_long_and_no_longer(
    caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """Whether the move was given up or failed; the vbucket is where it was."""
    settings = ClusterSettings(nodes=2, vbuckets=2, member_timeout_seconds=0.05)
    bucket = Bucket(settings)
    bucket.local_nodes.discard(ELSEWHERE)

    async def run() -> list[bytes]:
        link = _EndlessLink(bucket, fails=fails)
        move = RemoteMove(bucket, link, HERE, (0,), lambda: None)
        moving = asyncio.ensure_future(move.run())
        await link.is_asked.wait()
        if not fails:
            moving.cancel()
        async with asyncio.timeout(90.0):
            with pytest.raises(SourceError if fails else asyncio.CancelledError):
                await moving
        return link.orders

    assert asyncio.run(run()) == [TAKE, LEAVE]
    assert bucket.map.owner(0) == HERE
    assert [record.getMessage() for record in caplog.records] == [
        "rebalance: node 2 of 2 (127.0.0.1:0) still takes vbuckets 0.05 seconds after it was told "
        "to leave them"
    ]


class _Deaf:
    """A server that lets a node sign in, and reads nothing more; ``heard`` is what it read."""

    def __init__(self, password: Secret) -> None:
        self.is_over = asyncio.Event()
        self.heard = b""
        self._users = UserStore({"somebody": "else"})
        self._users.add_internal(node_credentials(password))

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter, sasl = FrameSplitter(), SaslConversation(self._users)
        outcome: Outcome | None = None
        while not isinstance(outcome, Accepted):
            if not (data := await reader.read(1000)):
                writer.transport.abort()
                return
            self.heard += data
            block = splitter.feed(data)
            for index in range(len(block)):
                asked, value, status = block.frame(index), b"", Status.SUCCESS
                if asked.opcode != Opcode.HELLO:
                    take = sasl.start if asked.opcode == Opcode.SASL_AUTH else sasl.step
                    outcome = take(asked.key, asked.value)
                    if isinstance(outcome, Rejected):
                        status = Status.AUTH_ERROR
                    else:
                        value = outcome.payload
                if isinstance(outcome, Challenge):
                    status = Status.AUTH_CONTINUE
                answer = Frame(
                    Magic.RESPONSE,
                    asked.opcode,
                    vbucket_or_status=status,
                    opaque=asked.opaque,
                    value=value,
                )
                writer.write(answer.to_bytes())
        await self.is_over.wait()
        writer.transport.abort()


def test_a_connection_to_a_process_that_reads_nothing_is_closed() -> None:
    """Also when more waits for it than the sockets hold."""

    async def run() -> None:
        deaf = _Deaf(Secret("secret"))
        server = await asyncio.start_server(deaf, "127.0.0.1", 0)
        address = NodeAddress(kv=server.sockets[0].getsockname()[1])
        with pytest.raises(SourceError, match=r"SASL_STEP: found status 0x20"):
            await OrderConnection.open(address, node_credentials(Secret("other")), 90.0)
        connection = await OrderConnection.open(address, node_credentials(Secret("secret")), 90.0)
        assert b"@replication" in deaf.heard and b"secret" not in deaf.heard
        connection.timeout_seconds = 0.05
        with pytest.raises(TimeoutError):
            await connection.ask(m.IoctlSet(b"cluster.state", b"x" * 30_000_000), Opcode.IOCTL_SET)
        async with asyncio.timeout(90.0):
            await connection.close()
        deaf.is_over.set()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_who_is_cancelled_as_he_closes_a_connection_leaves_none_open() -> None:
    """As a cluster is that stops just when it finds that its member is gone."""

    async def run() -> None:
        deaf = _Deaf(Secret("secret"))
        server = await asyncio.start_server(deaf, "127.0.0.1", 0)
        address = NodeAddress(kv=server.sockets[0].getsockname()[1])
        connection = await OrderConnection.open(address, node_credentials(Secret("secret")), 90.0)
        closing = asyncio.ensure_future(connection.close())
        await asyncio.sleep(0)  # it waits for what reads
        closing.cancel()
        await asyncio.wait((closing,))
        assert closing.cancelled()
        assert connection._writer.is_closing()
        deaf.is_over.set()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_each_bucket_numbers_its_moves_by_itself() -> None:
    """As often as not two clusters live in one process: what one orders is nothing to the other."""
    for _ in range(2):
        bucket = Bucket(ClusterSettings(nodes=2, vbuckets=2, member_timeout_seconds=0.05))
        links = [_EndlessLink(bucket, fails=True) for _ in range(2)]

        async def run(link: _EndlessLink, bucket: Bucket = bucket) -> int:
            bucket.local_nodes.discard(ELSEWHERE)
            with pytest.raises(SourceError):
                async with asyncio.timeout(90.0):
                    await RemoteMove(bucket, link, HERE, (0,), lambda: None).run()
            return link.number

        assert [asyncio.run(run(link)) for link in links] == [1, 2]
