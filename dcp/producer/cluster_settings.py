"""The settings of the embedded cluster: those of its server, and what only clients' writes and
tests need.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dcp.errors import ConfigError
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.server_settings import ServerSettings
from dcp.setting_keys import key, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(ServerSettings):
    """A cluster of ``nodes`` that share the vbuckets of one bucket."""

    subject: ClassVar[str] = "producer "

    # The user that commands sign in as, with its password on this machine.
    users: Mapping[str, str] = key_of(
        ServerSettings, "users", default={"Administrator": "password"}
    )
    users_without_streams: frozenset[str] = key(
        frozenset(), "Users that may log in, but not open DCP connections."
    )
    administrators: frozenset[str] | None = key(
        None,
        "Users that may change the cluster and take over vbuckets; none: the first of ``users``.",
    )
    # Clients of the cluster read documents by key, those of a relay do not.
    keeps_values: bool = key_of(ServerSettings, "keeps_values", default=True)
    """``record_branches`` keeps all values, whatever this is."""
    expiry_pager_seconds: float = key(
        0.0,
        "How often expired documents are deleted; 0: only by ``expire_due``.",
        unit="seconds",
        least=0,
    )
    rebalance_timeout_seconds: float = key(
        600.0,
        "Time limit of a rebalance that a client orders over the protocol.",
        unit="seconds",
        least=0,
    )
    record_seqnos: bool = key(
        True, "Whether counters keep every sent seqno, at 8 bytes each; for tests."
    )
    record_branches: bool = key(
        True,
        "Whether ``state_at`` knows every branch, with the writes that failovers and crashes lost; "
        "else it knows the current branch only. For tests.",
    )
    unpersisted_seqnos: int = key(
        0, "Number of newest seqnos that stay off the disk; for tests.", least=0
    )

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        unknown = sorted((self.administrators or frozenset()) - self.users.keys())
        if unknown:
            raise ConfigError(
                f"{self.named('administrators')}: found {unknown[0]!r}, expected one of "
                f"{', '.join(sorted(self.users))}"
            )
        if self.bucket_type is BucketType.EPHEMERAL and self.unpersisted_seqnos:
            raise ConfigError(
                f"{self.named('unpersisted_seqnos')}: found {self.unpersisted_seqnos}, expected 0 "
                "for an ephemeral bucket: such a bucket has no disk"
            )

    def is_administrator(self, user: str | None) -> bool:
        if self.administrators is None:
            return user == next(iter(self.users))
        return user in self.administrators

    def may_open_dcp(self, user: str | None) -> bool:
        return user not in self.users_without_streams
