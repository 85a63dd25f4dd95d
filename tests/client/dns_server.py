"""A DNS server of a few SRV records on a UDP port of this machine, for the tests."""

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
from dns.resolver import Resolver

Records = Mapping[str, Sequence[str]]
"""By name, what each SRV record says: ``priority weight port target``."""


@contextmanager
def dns_server(records: Records, *, answers: bool = True) -> Iterator[Resolver]:
    """Give a resolver that asks the server, and nobody else; it may be one that never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        if answers:
            thread = threading.Thread(target=_serve, args=(server, records), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(_send_end, server.getsockname())
        resolver = Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = server.getsockname()[1]
        yield resolver


def _send_end(address: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"", address)


def _serve(server: socket.socket, records: Records) -> None:
    while True:
        said, client = server.recvfrom(4096)
        if not said:
            return
        question = dns.message.from_wire(said)
        answer = dns.message.make_response(question)
        name = question.question[0].name
        found = records.get(str(name).rstrip("."))
        if found is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found:
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", "SRV", *found))
        server.sendto(answer.to_wire(), client)
