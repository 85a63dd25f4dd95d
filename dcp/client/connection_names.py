"""Names connections: readable for the cluster's operator, and unique.

    dcplake-1f0c2a9b-r12-t3.0:travel:worker-7:4242:5-9f3c21ab
    product, lake, round, task : bucket : host : process : number in it, and random digits

Servers show the name in logs and ``dcp`` statistics, and close an older connection of the same
name. Hosts and process ids may repeat (containers), hence the random digits. ``cbstats dcpagg``
groups connections by the part before the first separator: with ``-`` by product, with ``:`` by task
(kv_engine ``engines/ep/src/ep_engine.cc``, ConnAggStatBuilder).
"""

import re
import secrets
from itertools import count
from os import getpid
from socket import gethostname
from typing import Final

from dcp.errors import ConfigError
from dcp.wire.vocabulary import MAX_CONNECTION_NAME_BYTES

_RANDOM_BYTES: Final = 4
_MOST_OF_BUCKET: Final = 60
_MOST_OF_HOST: Final = 50
_numbers: Final = count(1)


def unique_name(prefix: str, bucket: str) -> str:
    """Return the name of a new connection. Special characters of bucket and host are left out, and
    long ones are cut.

    Raises:
        ConfigError: the prefix is too long, or has characters that server logs read as JSON.
    """
    host = gethostname().partition(".")[0]
    number = f"{next(_numbers)}-{secrets.token_hex(_RANDOM_BYTES)}"
    parts = (_plain(bucket, _MOST_OF_BUCKET), _plain(host, _MOST_OF_HOST), str(getpid()), number)
    behind = ":".join(("", *parts))
    most = MAX_CONNECTION_NAME_BYTES - len(behind)
    if len(prefix) > most or not prefix.isascii() or not prefix.isprintable():
        raise ConfigError(
            f"connection name prefix: found {prefix!r}, expected printable ASCII of at most "
            f"{most} characters"
        )
    if set(prefix) & set('{}"'):
        raise ConfigError(f"connection name prefix: found {prefix!r}, expected no braces or quotes")
    return prefix + behind


def _plain(text: str, most: int) -> str:
    return re.sub(r"[^A-Za-z0-9_.%-]", "_", text)[:most]
