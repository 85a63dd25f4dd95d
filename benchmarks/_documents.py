"""Documents for benchmarks: JSON with a number and noise, keyed ``doc:`` and ten digits."""

from base64 import urlsafe_b64encode
from random import Random
from typing import Final

from dcp.producer.cluster import ProducerCluster

PREFIX: Final = b"doc:"
KEY_BYTES: Final = len(PREFIX) + 10


def key_of(number: int) -> bytes:
    """Return a document's key."""
    return PREFIX + b"%010d" % number


def value_of(number: int, value_bytes: int, random: Random) -> bytes:
    """Return a document of ``value_bytes``, which differs at each call."""
    begin = b'{"id":"%010d","pad":"' % number
    pad = urlsafe_b64encode(random.randbytes(value_bytes))
    return begin + pad[: value_bytes - len(begin) - 2] + b'"}'


def fill(cluster: ProducerCluster, documents: int, value_bytes: int) -> None:
    """Write so many documents, each vbucket's as one disk snapshot."""
    random = Random(0)
    with cluster.batch():
        for number in range(documents):
            cluster.set(key_of(number), value_of(number, value_bytes, random))
