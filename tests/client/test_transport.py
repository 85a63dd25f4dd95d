"""The socket of a connection: what has arrived is read, even if nothing more can be sent."""

import socket
import struct

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.transport import LostConnectionError, Transport

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def test_what_arrived_before_a_reset_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = NodeAddress("127.0.0.1", listener.getsockname()[1])
        transport = Transport.connect(address, timeout_seconds=5, tls=None, on_step=lambda _: None)
        try:
            server, _ = listener.accept()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            server.sendall(b"row" * 100)
            assert transport.wait(5, reading=True)
            server.close()
            for _ in range(3):
                transport.write(b"an acknowledgement")
            buffer = memoryview(bytearray(1000))
            assert buffer[: transport.read(buffer)] == b"row" * 100
            with pytest.raises(LostConnectionError):
                transport.read(buffer)
        finally:
            transport.close()
