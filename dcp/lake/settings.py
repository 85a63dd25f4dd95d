"""Every setting of a run, as typed frozen dataclasses: one per section of the configuration file.

A setting's default, meaning, unit and allowed range stand beside it and nowhere else:
``settings_load.py`` checks values against them, ``settings_document.py`` writes
``conf/dcplake.toml`` from them. Values are checked when the objects are made, so that no later
code checks again.
No secret is a setting: the password is named by reference (an environment variable or a file).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dcp.errors import ConfigError
from dcp.lake.memory import AUTO_MEMORY, parse_memory
from dcp.lake.window_bounds import LEAST_WINDOW_BYTES, windows_one_by_one
from dcp.protocol.window_policies import Policy
from dcp.types import U32_MAX

MEBIBYTE: Final = 1024 * 1024
LARGEST_DOCUMENT_BYTES: Final = 20 * MEBIBYTE


def _key(
    default: Any,
    text: str,
    *,
    unit: str = "",
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    facts = {"text": text, "unit": unit, "least": least, "most": most, "choices": choices}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: MappingProxyType(dict(default)), metadata=facts)
    return field(default=default, metadata=facts)


class _Section:
    """Base of the sections: checks each value's type, range and choice."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for key in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            _check(key.name, getattr(self, key.name), key.default, key.metadata)


def _check(name: str, value: object, default: object, facts: Mapping[str, Any]) -> None:
    expected = describe_expected(default, facts)
    problem = ConfigError(f"{name}: found {value!r} ({type(value).__name__}), expected {expected}")
    if isinstance(default, float):
        if type(value) not in (int, float):
            raise problem
    elif isinstance(default, bool | int | str):
        if type(value) is not type(default):
            raise problem
    elif isinstance(default, tuple):
        if not isinstance(value, tuple) or not value or not all(map(_filled, value)):
            raise problem
    elif not isinstance(value, Mapping) or not all(
        isinstance(part, str) for item in value.items() for part in item
    ):
        raise problem
    least, most, choices = facts["least"], facts["most"], facts["choices"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        too_small = least is not None and not value >= least
        if too_small or (most is not None and not value <= most) or value in _NOT_NUMBERS:
            raise problem
    if choices and value not in choices:
        raise problem


_NOT_NUMBERS: Final = (float("inf"), float("-inf"))


def _filled(item: object) -> bool:
    return isinstance(item, str) and bool(item)


def describe_expected(default: object, facts: Mapping[str, Any]) -> str:
    """Say in words which values a setting takes: its type, range or choices, and unit."""
    if facts["choices"]:
        return "one of " + ", ".join(f'"{choice}"' for choice in facts["choices"])
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, int | float):
        words = "an integer" if isinstance(default, int) else "a number"
        if facts["least"] is not None and facts["most"] is not None:
            words += f" from {facts['least']} to {facts['most']}"
        elif facts["least"] is not None:
            words += f", {facts['least']} or more"
        return words + (f" ({facts['unit']})" if facts["unit"] else "")
    if isinstance(default, str):
        return "a text"
    if isinstance(default, tuple):
        return "a list of one or more non-empty texts"
    return "a table of texts"


@dataclass(frozen=True, slots=True)
class SourceSettings(_Section):
    """The Couchbase cluster and bucket to read."""

    seeds: tuple[str, ...] = _key(
        ("127.0.0.1:11210",), "Nodes to ask for the cluster map, as host:port (data service)."
    )
    bucket: str = _key("default", "The bucket to replicate.")
    username: str = _key("", "The user to sign in as.")
    password_env: str = _key(
        "DCPLAKE_PASSWORD", "Name of the environment variable that holds the password."
    )
    password_file: str = _key(
        "", "File that holds the password (its first line); preferred when set."
    )
    allow_plain: bool = _key(
        False, "Whether the password may be sent as it is (SASL PLAIN) over an unencrypted line."
    )
    tls: bool = _key(False, "Whether to encrypt connections (the seeds must name TLS ports).")
    tls_ca_file: str = _key("", "Certificates to trust, PEM; the system's when empty.")
    connect_timeout_seconds: float = _key(
        10.0, "How long one connection attempt may take.", unit="seconds", least=0.05, most=600
    )
    bootstrap_timeout_seconds: float = _key(
        30.0,
        "How long a connection may take until it can open streams.",
        unit="seconds",
        least=0.05,
        most=600,
    )
    noop_interval_seconds: float = _key(
        20.0,
        "How often a node proves that it is alive; silence of twice this long means it is dead.",
        unit="seconds",
        least=1,
        most=600,
    )
    receiver_group_tag: str = _key(
        "",
        "Where the seeds are those of a relay: the tag of its group that this lake belongs to, a "
        "number of 64 bits with a sign; in none when empty. Other nodes refuse it.",
    )

    def __post_init__(self) -> None:
        """Check that the tag is one."""
        _Section.__post_init__(self)
        self.group_tag()

    def group_tag(self) -> int | None:
        """Return the tag; None where there is none.

        Raises:
            ConfigError: it is no number of 64 bits.

        """
        if not self.receiver_group_tag:
            return None
        if re.fullmatch(r"-?[0-9]{1,19}", self.receiver_group_tag):
            tag = int(self.receiver_group_tag)
            if -(2**63) <= tag < 2**63:
                return tag
        raise ConfigError(
            f"receiver_group_tag: found {self.receiver_group_tag!r}, expected a decimal number "
            "from -9223372036854775808 to 9223372036854775807, or nothing"
        )

    def password(self, environment: Mapping[str, str] | None = None) -> str:
        """Read the password where the settings say it is.

        Raises:
            ConfigError: the file cannot be read, or the environment variable is not set although
                a user is named.

        """
        if self.password_file:
            try:
                text = Path(self.password_file).expanduser().read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"source.password_file: cannot read {self.password_file!r}: {error}"
                ) from None
            return text.split("\n", 1)[0].removesuffix("\r")
        found = (os.environ if environment is None else environment).get(self.password_env)
        if found is None and self.username:
            raise ConfigError(
                f"source.password_env: the environment variable {self.password_env} is not set, "
                f"expected the password of user {self.username!r} in it"
            )
        return found or ""


@dataclass(frozen=True, slots=True)
class FlowControlSettings(_Section):
    """How much may be under way between a node and the tables: the bound on Python's memory."""

    window_policy: str = _key(
        "static",
        "Who sizes the windows of an executor's connections (docs/flow-control.md). static: each "
        "has `window_bytes`. dynamic: each has `window_percent` of the quota when it connects. "
        "aggressive: all share `window_shared_percent` of it, and are resized as tasks come and "
        "go; both within `window_bytes` and `window_most_bytes`. ratio: as aggressive, without "
        "these limits. none: no flow control, see `allow_no_flow_control`.",
        choices=tuple(map(str, Policy)),
    )
    window_bytes: int = _key(
        10 * MEBIBYTE,
        "What a node may send on one connection before we acknowledge (the DCP buffer size). "
        "dynamic, aggressive: the least of it; ratio: that of connections outside executors; none: "
        "what a connection holds when we stop reading it.",
        unit="bytes",
        least=LEAST_WINDOW_BYTES,
        most=U32_MAX,
    )
    window_most_bytes: int = _key(
        50 * MEBIBYTE,
        "dynamic, aggressive: the most of it.",
        unit="bytes",
        least=LEAST_WINDOW_BYTES,
        most=U32_MAX,
    )
    window_quota_bytes: int = _key(
        1024 * MEBIBYTE,
        "dynamic, aggressive, ratio: the memory of one executor that the percentages are of.",
        unit="bytes",
        least=MEBIBYTE,
        most=2**50,
    )
    window_percent: float = _key(
        1.0, "dynamic: a new connection's part of the quota.", unit="percent", least=0.01, most=100
    )
    window_threshold_percent: float = _key(
        10.0,
        "dynamic: once all windows would be more than this part of the quota, new ones get "
        "`window_bytes`.",
        unit="percent",
        least=0.01,
        most=100,
    )
    window_shared_percent: float = _key(
        5.0,
        "aggressive, ratio: the part of the quota that all connections share.",
        unit="percent",
        least=0.01,
        most=100,
    )
    allow_no_flow_control: bool = _key(
        False,
        "Whether `window_policy` may be none: then nothing but unread sockets bounds the memory, "
        "and a node whose NOOPs wait behind unread data may end the connection.",
    )
    stream_window_bytes: int = _key(
        0,
        "A window for each vbucket's stream, beside the connection's; 0 means none. Only "
        "producers that follow the DCP document have it (`dcplake serve`); data servers refuse it, "
        "which is logged, and the connection's window holds alone.",
        unit="bytes",
        least=0,
        most=2**32 - 1,
    )
    ack_fraction: float = _key(
        0.2,
        "Acknowledge when this part of the window has been consumed …",
        unit="part of the window",
        least=0.01,
        most=0.9,
    )
    ack_seconds: float = _key(
        5.0, "… or when this long has passed.", unit="seconds", least=0.05, most=60
    )
    batch_rows: int = _key(
        10_000, "Most rows in one Arrow batch handed to Spark.", unit="rows", least=1, most=10**6
    )
    batch_bytes: int = _key(
        4 * MEBIBYTE,
        "Most bytes in one Arrow batch, unless a single document is larger; the batch holds its "
        "part of the window until Spark has taken it.",
        unit="bytes",
        least=1024,
        most=2**30,
    )
    batch_seconds: float = _key(
        2.0, "How long rows may wait for their batch to fill.", unit="seconds", least=0.01, most=60
    )

    live_folder: str = _key(
        "",
        "Where tasks write what they see, for `dcplake top` and `dcplake status`: on a cluster a "
        "folder that executors and operators share; empty: each machine's folder for temporary "
        "files, readable by its user only.",
    )

    def __post_init__(self) -> None:
        """Check that a batch and the bytes not yet acknowledged fit the window together.

        Where a window may be smaller than the one that is checked here, or is a stream's, a batch
        is handed over earlier (``flush_bytes``).
        """
        _Section.__post_init__(self)
        self._check_policy()
        window_bytes, what = self.window_bytes, "window_bytes"
        if self.window_policy == Policy.RATIO:
            [window_bytes] = windows_one_by_one(self, 1)
            what = "the window of one connection, window_shared_percent of window_quota_bytes"
        most = int(window_bytes * (1 - self.ack_fraction))
        if self.batch_bytes > most:
            raise ConfigError(
                f"batch_bytes: found {self.batch_bytes}, expected at most {most}: a batch "
                f"and ack_fraction ({self.ack_fraction}) must fit {what} "
                f"({window_bytes}) together, or the node stops before a batch is full"
            )
        least = LEAST_WINDOW_BYTES
        if self.stream_window_bytes and not least <= self.stream_window_bytes <= window_bytes:
            raise ConfigError(
                f"stream_window_bytes: found {self.stream_window_bytes}, expected 0, or from "
                f"{least} to {what} ({window_bytes})"
            )

    def _check_policy(self) -> None:
        if self.window_policy == Policy.NONE and not self.allow_no_flow_control:
            raise ConfigError(
                "window_policy: found 'none' (no flow control): NOOPs would wait behind unread "
                "data; set allow_no_flow_control to accept that"
            )
        limited = self.window_policy in (Policy.DYNAMIC, Policy.AGGRESSIVE)
        if limited and self.window_most_bytes < self.window_bytes:
            raise ConfigError(
                f"window_most_bytes: found {self.window_most_bytes}, expected at least "
                f"window_bytes ({self.window_bytes}) with window_policy {self.window_policy!r}"
            )

    @property
    def fixed_window_bytes(self) -> int:
        """The window of connections that no policy sizes; 0: no flow control."""
        return 0 if self.window_policy == Policy.NONE else self.window_bytes

    @property
    def least_window_bytes(self) -> int:
        """The smallest window that the policy gives; with ``none`` what is held at most."""
        return LEAST_WINDOW_BYTES if self.window_policy == Policy.RATIO else self.window_bytes

    def flush_bytes(self, window_bytes: int) -> int:
        """Held bytes at which a batch must be handed over, whatever it lacks.

        ``window_bytes`` is the smallest window of a connection now, 0 without flow control. With a
        batch and what is not acknowledged yet it still has room: no node ever waits for a batch
        that waits for it.
        """
        return self._flush_bytes(window_bytes or self.window_bytes)

    @property
    def stream_flush_bytes(self) -> int:
        """The same for what a batch holds of one stream with a window of its own."""
        return self._flush_bytes(self.stream_window_bytes)

    def _flush_bytes(self, window_bytes: int) -> int:
        released_bytes = int(window_bytes * self.ack_fraction)
        return min(self.batch_bytes, window_bytes // 2, window_bytes - released_bytes)


@dataclass(frozen=True, slots=True)
class RoundSettings(_Section):
    """One round: how many tasks, how long, how much."""

    tasks: int = _key(
        0, "Spark tasks that read at the same time; 0 means one per core.", least=0, most=4096
    )
    target_bytes: int = _key(
        1024 * MEBIBYTE,
        "A task ends its part of the round after this much was received.",
        unit="bytes",
        least=1,
        most=2**50,
    )
    target_seconds: float = _key(
        60.0, "A task ends its part of the round after this long.", unit="seconds", least=0.1
    )
    node_deadline_seconds: float = _key(
        30.0,
        "How long a node may be out of reach, or a vbucket without its stream, until it is left "
        "out of the round and reported.",
        unit="seconds",
        least=0.1,
        most=3600,
    )
    quiet_seconds: float = _key(
        10.0,
        "A node that sent nothing for this long, while a vbucket is below its high seqno, is asked "
        "what it holds; only its answer can end the vbucket as caught up.",
        unit="seconds",
        least=0.05,
        most=3600,
    )
    minimum_interval_seconds: float = _key(
        10.0,
        "Continuous runs: least time from the start of one round to the start of the next.",
        unit="seconds",
        least=0,
        most=86400,
    )


@dataclass(frozen=True, slots=True)
class LakeSettings(_Section):
    """Where the tables are and how long the past stays readable."""

    root: str = _key("lake", "Folder of the tables (a path or a URI that Spark can write to).")
    schema: str = _key(
        "", "Catalog schema of the tables, as catalog.schema; used instead of root when set."
    )
    lock: bool = _key(
        True, "Whether to take a lock file in a local root; commits are fenced with or without it."
    )
    horizon_hours: float = _key(
        168.0,
        "How far back rollbacks can be undone and versions stay readable; every table's retention "
        "follows it (docs/operations.md).",
        unit="hours",
        least=1,
        most=24 * 3650,
    )


@dataclass(frozen=True, slots=True)
class ApplySettings(_Section):
    """When pending changes are merged into the replica tables."""

    when: str = _key(
        "every_round",
        "every_round; pending_fraction: when the pending rows reach `pending_fraction` of the "
        "table; age: when the oldest waits for `age_seconds`; never: another job applies.",
        choices=("every_round", "pending_fraction", "age", "never"),
    )
    pending_fraction: float = _key(
        0.05, "See `when`.", unit="part of the table's rows", least=0.0001, most=100
    )
    age_seconds: float = _key(300.0, "See `when`.", unit="seconds", least=1, most=30 * 86400)
    key_literals: int = _key(
        10_000,
        "Up to this many changed keys go into the MERGE condition as literals, which keeps its "
        "cost independent of the table's size.",
        unit="keys",
        least=0,
        most=20_000,
    )


@dataclass(frozen=True, slots=True)
class PolicySettings(_Section):
    """What to do where there is a choice."""

    rollback: str = _key(
        "rewrite",
        "When the cluster lost writes and orders a rollback. rewrite: undo exactly what was lost; "
        "resync: stream the vbucket again and replace it as a whole; fail: leave the vbucket as it "
        "is, end with code 5.",
        choices=("rewrite", "resync", "fail"),
    )


@dataclass(frozen=True, slots=True)
class SparkSettings(_Section):
    """The Spark session, where dcplake builds it (not under spark-submit)."""

    master: str = _key("local[*]", "Spark master.")
    driver_memory: str = _key(
        "auto",
        "Heap of the JVM in local mode, as Spark writes it (2g, 1500m). auto: what all tasks at "
        "once can need, 2g or more; less than that need is refused (docs/memory.md).",
    )
    conf: Mapping[str, str] = _key({}, "Further Spark configuration.")

    def __post_init__(self) -> None:
        """Check that the heap is a size."""
        _Section.__post_init__(self)
        if self.driver_memory != AUTO_MEMORY:
            parse_memory(self.driver_memory)


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections. Made by `dcp.lake.settings_load.load_settings`, or directly in tests."""

    source: SourceSettings = field(default_factory=SourceSettings)
    flow_control: FlowControlSettings = field(default_factory=FlowControlSettings)
    round: RoundSettings = field(default_factory=RoundSettings)
    lake: LakeSettings = field(default_factory=LakeSettings)
    apply: ApplySettings = field(default_factory=ApplySettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    spark: SparkSettings = field(default_factory=SparkSettings)


SECTIONS: Final[Mapping[str, type[_Section]]] = {
    "source": SourceSettings,
    "flow_control": FlowControlSettings,
    "round": RoundSettings,
    "lake": LakeSettings,
    "apply": ApplySettings,
    "policy": PolicySettings,
    "spark": SparkSettings,
}
