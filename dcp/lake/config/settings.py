"""The settings of a run, as typed frozen dataclasses: one per section of the configuration file.

The sections ``flow_control``, ``filter`` and ``privacy`` are in ``flow_control_settings.py``,
``filter_settings.py`` and ``privacy_settings.py``. The call of `key` at each setting gives its
default, meaning, unit and allowed range. ``settings_load.py`` checks values against them,
``settings_document.py`` writes ``conf/dcplake.toml`` from them. The constructors check values, so
no other code checks again.

No secret is a setting: the password is named by reference (an environment variable or a file).
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, get_type_hints

from dcp.client.settings import (
    AccessSettings,
    ConsumerSettings,
    ReachSettings,
    check_group_tag,
)
from dcp.errors import ConfigError, SecretError
from dcp.lake.config.filter_settings import FilterSettings, require_names
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.lake_root import checked_root, is_on_s3, local_root
from dcp.lake.config.memory import AUTO_MEMORY, MEBIBYTE, parse_memory
from dcp.lake.config.privacy_settings import PrivacySettings
from dcp.lake.config.required_spark import REQUIRED_SPARK
from dcp.lake.config.secret_files import read_account, read_secret
from dcp.lake.config.spark_master import slots_of
from dcp.lake.config.storage_options import checked_options
from dcp.lake.config.store_options import checked_cloud_options, is_in_cloud
from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret
from dcp.seeds import ConnectionString
from dcp.setting_keys import Section, key, key_of
from dcp.tls_settings import TlsSettings

_SPARK_SECONDS: Final = 60.0
"""The time of Spark's start, or of a commit, on a busy machine."""


@dataclass(frozen=True, slots=True)
class SourceSettings(ReachSettings):
    """The Couchbase cluster and bucket to read."""

    seeds: tuple[str, ...] = key_of(
        AccessSettings,
        "seeds",
        text="Nodes to ask for the cluster map: host, host:port, or a connection string such as "
        "couchbases://h1,h2?network=external (docs/howto/connect.md).",
    )
    bucket: str = key_of(AccessSettings, "bucket", text="The bucket to replicate.")
    username: str = key_of(
        AccessSettings,
        "username",
        default="",
        text="The user to sign in as; none where `credentials_folder` or a certificate says who.",
    )
    """No default: a lake is not read with an administrator's rights by mistake."""
    password_env: str = key_of(AccessSettings, "password_env")
    password_file: str = key_of(
        AccessSettings,
        "password_file",
        text="File that holds the password (its first line); preferred when set. Each round reads "
        "it.",
    )
    credentials_folder: str = key(
        "",
        "Folder with the files username and password (the first line of each), such as a mounted "
        "Kubernetes secret, in place of `username` and `password_file`. Each round reads them.",
        is_path=True,
    )
    allow_plain: bool = key(
        False,
        "Whether the password may be sent as it is (SASL PLAIN, HTTP) over an unencrypted line.",
    )
    tls: bool = key(
        False,
        "Whether to encrypt connections, as couchbases:// does for seeds with it; seeds without a "
        "port are then at 11207, and not 11210.",
    )
    tls_ca_file: str = key_of(TlsSettings, "ca_file")
    tls_cert_file: str = key_of(
        TlsSettings,
        "cert_file",
        text="The client's own certificate, PEM, with its chain; without a user it says who signs "
        "in.",
    )
    tls_key_file: str = key_of(TlsSettings, "key_file")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        try:
            encrypts = self.connection_string().tls
        except ConfigError as error:
            raise ConfigError(f"seeds: {str(error).removeprefix('seeds: ')}") from None
        check_group_tag(self.receiver_group_tag)
        if self.credentials_folder and (self.username or self.password_file):
            raise ConfigError(
                "credentials_folder: found username or password_file beside it, expected neither: "
                "both are in the folder"
            )
        if self.tls_key_file and not self.tls_cert_file:
            raise ConfigError("tls_key_file: found no tls_cert_file, expected its certificate")
        if self.tls_cert_file and not encrypts:
            raise ConfigError(
                "tls_cert_file: found no encryption, expected couchbases:// or tls = true"
            )

    def connection_string(self) -> ConnectionString:
        """Parse the seeds.

        Raises:
            ConfigError: they are no seeds.
        """
        return ConnectionString.parse(self.seeds, tls=self.tls)

    def credentials(self, environment: Mapping[str, str] | None = None) -> Credentials:
        """Return user and password, as files and environment hold them at this moment.

        PLAIN is allowed on encrypted and local connections, or by the settings. ``environment``
        defaults to this process's.

        Raises:
            ConfigError: no user is named; else as for ``password``.
        """
        if self.credentials_folder:
            username, password = read_account(Path(self.credentials_folder))
        elif self.username:
            username, password = self.username, self.password(environment)
        elif self.tls_cert_file:
            return Credentials.of_certificate()
        else:
            raise ConfigError(
                "source.username: found none, expected the user to sign in as; it needs the role "
                "Data DCP Reader on the bucket"
            )
        is_private = self.allow_plain or self.connection_string().tls
        mechanisms = ALL_MECHANISMS if is_private else SCRAM_MECHANISMS
        return Credentials(username, Secret(password), mechanisms)

    def password(self, environment: Mapping[str, str] | None = None) -> str:
        """Read the password from its file or variable, on the machine of this process.

        Raises:
            SecretError: the file cannot be read, or is empty although a user is named.
            ConfigError: a user is named, and the environment variable is not set or is empty.
        """
        if self.password_file:
            first_line = read_secret(Path(self.password_file), "source.password_file")
            if self.username and not first_line:
                is_empty = "the first line of the file is empty"
                raise SecretError(self._missing("password_file", is_empty))
            return first_line
        found = (os.environ if environment is None else environment).get(self.password_env)
        # Who wrote the password itself there does not find it in the driver's log.
        shown = re.fullmatch("[A-Z_][A-Z0-9_]*", self.password_env)
        name = self.password_env if shown else "that it names"
        state = "not set" if found is None else "empty"
        if self.username and not found:
            raise ConfigError(
                self._missing("password_env", f"the environment variable {name} is {state}")
            )
        return found or ""

    def _missing(self, key_name: str, found: str) -> str:
        return f"source.{key_name}: {found}, expected the password of user {self.username!r} in it"


@dataclass(frozen=True, slots=True)
class RoundSettings(Section):
    """One round: number of tasks, time, size."""

    tasks: int = key(
        0,
        "Spark tasks that read at the same time. 0: one for every 10,000 missing seqnos, up to "
        "one per core. On a cluster 0 means 2 in all at most: set this key there.",
        least=0,
        most=4096,
    )
    target_bytes: int = key(
        1024 * MEBIBYTE,
        "A task ends its part of the round after this much was received.",
        unit="bytes",
        least=1,
        most=2**50,
    )
    target_seconds: float = key(
        60.0, "A task ends its part of the round after this long.", unit="seconds", least=0.1
    )
    quiet_seconds: float = key(
        10.0,
        "After this silence below a vbucket's high seqno the task asks the node what it holds. "
        "Only the answer can end the vbucket as caught up.",
        unit="seconds",
        least=0.05,
        most=3600,
    )
    minimum_interval_seconds: float = key(
        5.0,
        "Continuous runs: least time from the start of one round to the start of the next.",
        unit="seconds",
        least=0,
        most=86400,
    )
    node_deadline_seconds: float = key_of(ConsumerSettings, "node_deadline_seconds")

    @property
    def stall_seconds(self) -> float:
        """A run without progress for this time counts as stalled.

        It allows for a round's target, the wait for a silent node, and Spark.
        """
        return (
            self.target_seconds
            + self.node_deadline_seconds
            + self.minimum_interval_seconds
            + _SPARK_SECONDS
        )


@dataclass(frozen=True, slots=True)
class LakeSettings(Section):
    """The location of the tables, and how long the past stays readable."""

    root: str = key(
        "lake",
        "Folder of the tables: a path, s3://bucket/path, gs://… or abfss://… "
        "(docs/howto/object-stores.md), or another URI that Spark can write to.",
        is_path=True,
    )
    schema: str = key(
        "", "Catalog schema of the tables, as catalog.schema; used instead of root when set."
    )
    storage_options: Mapping[str, str] = key(
        {},
        "The way to an object store, if the environment and the machine do not give it. Names are "
        "those of delta-rs and Polars: endpoint, region, access_key_id and others "
        "(docs/howto/object-stores.md).",
        may_be_secret=True,
    )
    lock: bool = key(
        True, "Whether to take a lock file in a local root; commits are fenced with or without it."
    )
    horizon_hours: float = key(
        168.0,
        "How far back rollbacks can be undone and versions stay readable; every table's retention "
        "follows it (docs/howto/keep-rollback-horizon.md).",
        unit="hours",
        least=1,
        most=24 * 3650,
    )
    deletion_vectors: bool = key(
        True,
        "Whether deletion vectors mark the rows that are gone. false: an apply rewrites the files "
        "that hold them, and readers that know no deletion vectors read the tables. Chosen once, "
        "when a lake is made; of that lake every configuration says the same.",
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.schema:
            checked_root(self.root)
        if self.schema or not is_in_cloud(self.root):
            checked_options(self.storage_options)
        else:
            checked_cloud_options(self.root, self.storage_options)
        if self.schema:
            return
        if self.storage_options and not (is_on_s3(self.root) or is_in_cloud(self.root)):
            raise ConfigError(
                f"storage_options: found some, but root is {self.root!r}, expected "
                "s3://bucket/path, gs://… or abfss://…"
            )
        folder = local_root(self.root)
        if folder is not None and folder.is_file():
            raise ConfigError(f"lake.root: found a file ({self.root!r}), expected a folder")

    @property
    def on_s3(self) -> bool:
        """True if the tables are on S3; for a catalog's tables the options decide."""
        return bool(self.storage_options) if self.schema else is_on_s3(self.root)


class ApplyWhen(StrEnum):
    """The choices of ``apply.when``."""

    EVERY_ROUND = "every_round"
    PENDING_FRACTION = "pending_fraction"
    AGE = "age"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ApplySettings(Section):
    """The cadence of merging pending changes into the replica tables."""

    when: ApplyWhen = key(
        ApplyWhen.EVERY_ROUND,
        "every_round; pending_fraction: when the pending rows reach `pending_fraction` of the "
        "table; age: when the oldest waits for `age_seconds`; never: `dcplake apply` does.",
    )
    pending_fraction: float = key(
        0.05, "See `when`.", unit="part of the table's rows", least=0.0001, most=100
    )
    age_seconds: float = key(300.0, "See `when`.", unit="seconds", least=1, most=30 * 86400)
    contracts_folder: str = key(
        "",
        "Folder of the contracts: TOML files that say which parts of a collection's documents "
        "become typed columns (docs/howto/typed-columns.md); empty: there are no such columns.",
        is_path=True,
    )


class RollbackPolicy(StrEnum):
    """The choices of ``policy.rollback``."""

    REWRITE = "rewrite"
    """Undo exactly the lost rows; stream on from the common history."""
    RESYNC = "resync"
    """Stream the vbucket again from its beginning, and replace it when it is complete."""
    FAIL = "fail"
    """Leave the vbucket as it is, and report it."""


class DroppedPolicy(StrEnum):
    """The choices of ``policy.dropped``, for the rows of a collection that the source dropped."""

    DELETE = "delete"
    """They leave the replica, in the commit of the snapshot that carries the drop."""
    KEEP = "keep"
    """They stay as they were; the drop ends no documents."""


@dataclass(frozen=True, slots=True)
class PolicySettings(Section):
    """The choices of a lake: rollbacks, dropped collections, and safety of published rows."""

    rollback: RollbackPolicy = key(
        RollbackPolicy.REWRITE,
        "When the cluster lost writes and orders a rollback. rewrite: undo exactly the lost rows. "
        "resync: stream the vbucket again and replace it as a whole. fail: leave the vbucket as it "
        "is, end with code 5.",
    )
    dropped: DroppedPolicy = key(
        DroppedPolicy.DELETE,
        "The rows of a collection that is dropped at the source. delete: they leave its table, in "
        "the commit of the snapshot with the drop. keep: they stay as they were (the view "
        "dropped_collections names their collections). The round that first receives a "
        "collection's drop decides for good. A flush always deletes.",
    )
    dropped_collections: Mapping[str, str] = key(
        {},
        "The same for single scopes (as inventory) and collections (as inventory.hotel), by name; "
        "a collection's own wins over its scope's. `dropped` is for all others.",
    )
    persist_to: int = key(
        0,
        "Publish only what is on the disks of so many nodes: 1 is the active one, 2 one replica "
        "besides, and so on. What no disk has a crash may take back. 0: publish at once.",
        unit="nodes",
        least=0,
        most=4,
    )

    def __post_init__(self) -> None:
        own: object = self.dropped_collections  # not checked yet
        if "soft" in (self.dropped, *(own.values() if isinstance(own, Mapping) else ())):
            raise ConfigError(
                'dropped, dropped_collections: found "soft", which dcplake does not have: write '
                '"keep"; the view dropped_collections tells what was dropped, and when'
            )
        Section.__post_init__(self)
        require_names("dropped_collections", self.dropped_collections)
        for name, policy in self.dropped_collections.items():
            if policy not in set(DroppedPolicy):
                raise ConfigError(
                    f"dropped_collections: found {policy!r} for {name}, expected one of "
                    + ", ".join(f'"{choice}"' for choice in DroppedPolicy)
                )

    def dropped_of(self, names: Sequence[str]) -> DroppedPolicy:
        """Return the choice for a collection with these names, its scope's and its own."""
        found = [
            self.dropped_collections[name] for name in names if name in self.dropped_collections
        ]
        return DroppedPolicy(found[-1]) if found else self.dropped

    @property
    def keeps_dropped(self) -> bool:
        """True if rows of some dropped collection stay."""
        return {self.dropped, *self.dropped_collections.values()} != {DroppedPolicy.DELETE}


INSTALLED_SUITE: Final = "installed"
"""The name of the installed suite in ``quality.gate``; other values are files."""


@dataclass(frozen=True, slots=True)
class QualitySettings(Section):
    """The checks of data quality that a run makes by itself (docs/howto/quality.md)."""

    gate: str = key(
        "",
        "The suite that the rows of each apply must pass before the merge into a table: "
        f"{INSTALLED_SUITE}, or the path of a file; empty: none. While rows break it, the table "
        "stays at its version. A run with --once then ends with code 8.",
        is_path=True,
    )


@dataclass(frozen=True, slots=True)
class SparkSettings(Section):
    """The Spark session that dcplake builds; arguments of spark-submit override it."""

    master: str = key(
        "local[*]",
        "Spark master: local[N], local[*], spark://host:port, k8s://host:port, yarn, or "
        "sc://host:port (Spark Connect).",
    )
    driver_memory: str = key(
        "auto",
        "Heap of the JVM in local mode, as Spark writes it (2g, 1500m). auto: what all tasks at "
        "once can need, 2g or more; less than that need is refused (docs/reference/memory.md).",
    )
    conf: Mapping[str, str] = key({}, "Further Spark configuration.", may_be_secret=True)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        slots_of(self.master)
        if "spark.master" in self.conf:
            raise ConfigError(
                "spark.conf: found spark.master, expected it in the section itself: "
                "[spark] master = …"
            )
        for name in self.conf.keys() & REQUIRED_SPARK.keys():
            if (found := self.conf[name]).lower() != REQUIRED_SPARK[name].lower():
                raise ConfigError(
                    f"spark.conf: found {name} = {found!r}, expected it not to be set: dcplake's "
                    f"rows and statements depend on {REQUIRED_SPARK[name]!r}, which it sets itself"
                )
        if self.driver_memory != AUTO_MEMORY:
            parse_memory(self.driver_memory)


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections. Made by `dcp.lake.config.settings_load.load_settings`, or directly in tests."""

    source: SourceSettings = field(default_factory=SourceSettings)
    filter: FilterSettings = field(default_factory=FilterSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    flow_control: FlowControlSettings = field(default_factory=FlowControlSettings)
    round: RoundSettings = field(default_factory=RoundSettings)
    lake: LakeSettings = field(default_factory=LakeSettings)
    apply: ApplySettings = field(default_factory=ApplySettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    quality: QualitySettings = field(default_factory=QualitySettings)
    spark: SparkSettings = field(default_factory=SparkSettings)


SECTIONS: Final[Mapping[str, type[Section]]] = get_type_hints(Settings)
