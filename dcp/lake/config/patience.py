"""Says how long delta-rs and obstore wait for a store, in their own options."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dcp.errors import ConfigError

RETRIES: Final = "max_retries"
PATIENCE: Final = MappingProxyType(
    {"connect_timeout": "5s", "timeout": "30s", RETRIES: "8", "retry_timeout": "60s"}
)
"""Limits for a connection and an answer; then the number of retries and their time in all.

Each retry waits up to twice as long as the last one. Waits are drawn at random: with the defaults a
request gives up after 5 to 30 seconds. A run outlasts a longer outage (`dcp.lake.run.outages`).
"""
_NUMBERS: Final = (r"\d{1,4}s", r"\d{1,2}")


def checked_patience(options: Mapping[str, str]) -> None:
    for name in PATIENCE.keys() & options.keys():
        if not re.fullmatch(_NUMBERS[name == RETRIES], options[name]):
            expected = "a number" if name == RETRIES else 'a number of seconds, as "30s"'
            raise ConfigError(
                f"storage_options: found {name} {options[name]!r}, expected {expected}"
            )
