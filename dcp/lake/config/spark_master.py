"""Parses a Spark master, and derives the number of tasks that run at once under it."""

import os
import re
from typing import Final

from dcp.errors import ConfigError

TASK_ATTEMPTS: Final = 4
"""The attempts of a task: a killed Python worker costs one attempt, not the round."""

_LOCAL: Final = re.compile(r"local(?:\[(\*|[1-9][0-9]{0,4})(\s*,\s*[1-9][0-9]{0,4})?\])?")
_CLUSTER: Final = re.compile(r"yarn|[a-z0-9-]+://.+", re.DOTALL)


def slots_of(master: str) -> int:
    """Return the number of simultaneous tasks under a local master; 0 if the cluster decides.

    Raises:
        ConfigError: it is no master, or of a kind that we cannot size (``local-cluster[…]``).
    """
    if (local := _LOCAL.fullmatch(master)) is not None:
        return os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    if _CLUSTER.fullmatch(master) is not None:
        return 0
    raise ConfigError(
        f"spark.master: found {master!r}, expected local, local[N], local[*], spark://host:port, "
        "k8s://host:port, yarn or sc://host:port"
    )


def local_master(master: str) -> str:
    """Return ``master`` with retries, which only local mode takes from its name: ``local[2,4]``."""
    local = _LOCAL.fullmatch(master)
    if local is None or local[2]:
        return master
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]"
