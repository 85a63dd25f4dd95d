"""What this process has in memory, as the system counts it."""

import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Return the process's resident memory; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
