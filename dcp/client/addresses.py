"""Parses and prints the address of a data node: host and port.

Text has IPv6 hosts in brackets (``[::1]:11210``); values have them without.
"""

from dataclasses import dataclass
from typing import Annotated

from dcp.errors import ConfigError
from dcp.records import UNSTORED
from dcp.seeds import check_address, parse_seed


@dataclass(frozen=True, slots=True, order=True)
class NodeAddress:
    """Host name or address of a data node, and its port for memcached's binary protocol."""

    host: Annotated[str, UNSTORED]
    port: Annotated[int, UNSTORED]

    @property
    def text(self) -> Annotated[str, "node"]:
        """Records store it as this text."""
        return str(self)

    def __post_init__(self) -> None:
        check_address(self.host, self.port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, tls: bool = False) -> "NodeAddress":
        """Parse an address as users write it. Raises ConfigError, see ``parse_seed``."""
        return cls(*parse_seed(text, tls=tls))


def parse_seeds(
    seeds: list[str] | tuple[str, ...], *, tls: bool = False
) -> tuple[NodeAddress, ...]:
    """Parse a list of addresses of data nodes; drop repeated ones.

    `dcp.client.seed_lookup.find_seeds` reads whole connection strings.

    Raises:
        ConfigError: the list is empty, or an entry is no address.
    """
    if not seeds:
        raise ConfigError("seeds: found none, expected at least one host:port")
    return tuple(dict.fromkeys(NodeAddress.parse(seed, tls=tls) for seed in seeds))
