"""Bounds a relay's memory by a formula; ``docs/reference/memory.md`` explains it.

It serves its consumers as a producer does (``dcp/server/commands/memory_formula.py``), and holds
besides what its links to the cluster bring: a window and a message each, as the cluster waits for
acknowledgements then. What is not on disk yet is never more than a part of the checkpoints' quota
and the windows: nothing is acknowledged while the disk is behind.
"""

from typing import Final

from dcp.relay.relay_settings import FULL_WINDOWS, MIB, RelaySettings
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
"""An arriving message: overshoot, receive buffer, that buffer's growth, the copy."""


def relay_bytes(settings: RelaySettings, load: Load, nodes: int = 1) -> int:
    """Return the most that a relay's process takes, with links to so many nodes of the cluster."""
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
    """Return the formula's terms in words, for the operator who sizes the machine."""
    nothing = Load(0, connections=0)
    node = relay_bytes(settings, nothing, 2) - relay_bytes(settings, nothing, 1)
    words = in_words(lambda load: relay_bytes(settings, load))
    return f"{words}, for each node of the cluster but one {node // MEBIBYTE} MiB"
