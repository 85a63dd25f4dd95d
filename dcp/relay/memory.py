"""The memory bound of a relay, as a formula; ``docs/reference/memory.md`` explains it.

A relay serves its consumers as a producer does (``dcp/producer/memory.py``). It also
needs a window and a message per link to the cluster. Unwritten data is bounded by the windows and a
part of the checkpoints' quota, because nothing is acknowledged while the disk is behind.
"""

from typing import Final

from dcp.relay.settings import FULL_WINDOWS, MIB, RelaySettings
from dcp.server.commands.memory_formula import (
    FIXED_BYTES,
    MEBIBYTE,
    MESSAGES_IN_WORK,
    Load,
    checkpoints_bytes,
    clients_bytes,
    documents_bytes,
    in_words,
)

_COPIES_OF_MESSAGE: Final = 4
"""Of an arriving message: overshoot, receive buffer, growth of that buffer, and the copy."""


def relay_bytes(settings: RelaySettings, load: Load, nodes: int = 1) -> int:
    """Return the most memory that a relay takes, with links to so many nodes of the cluster."""
    windows_bytes = max(
        min(nodes, FULL_WINDOWS) * settings.window_bytes, nodes * min(MIB, settings.window_bytes)
    )
    return (
        FIXED_BYTES
        + documents_bytes(load)
        + checkpoints_bytes(settings.checkpoint_quota_bytes, takes_writes=False)
        + windows_bytes
        + nodes * _COPIES_OF_MESSAGE * load.largest_bytes
        + clients_bytes(load)
        + MESSAGES_IN_WORK * load.largest_bytes
    )


def relay_bytes_in_words(settings: RelaySettings) -> str:
    nothing = Load(0, connections=0)
    node = relay_bytes(settings, nothing, 2) - relay_bytes(settings, nothing, 1)
    words = in_words(lambda load: relay_bytes(settings, load))
    return f"{words}, for each node of the cluster but one {node // MEBIBYTE} MiB"
