"""The options of object stores that ``lake.storage_options`` takes, in one table for each store.

The names are those of delta-rs and Polars. A secret is given by a file, whose option has ``_file``
behind the secret's name; no message says a value, which may be a secret by a mistake.

delta-rs and Polars take missing options of the clouds, Google's and Azure's, from the environment,
as the clouds' own tools do. Spark's connectors have jars and settings of their own, in
``[spark.conf]``. `dcp.lake.config.storage_options` knows more of S3.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.config.lake_root import parts_of
from dcp.suggestions import did_you_mean

RETRIES: Final = "max_retries"
PATIENCE: Final = MappingProxyType(
    {"connect_timeout": "5s", "timeout": "30s", RETRIES: "8", "retry_timeout": "60s"}
)
"""Limits for a connection and an answer; then the number of retries and their time in all.

Each retry waits up to twice as long as the last one. Waits are drawn at random: with the defaults a
request gives up after 5 to 30 seconds. A run outlasts a longer outage (`dcp.lake.run.outages`).
"""
_NUMBERS: Final = (r"[1-9]\d{0,3}s", r"\d{1,2}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    prefix: str
    """Begins the names of environment variables."""
    secrets: tuple[str, ...]
    """Options that only a file gives."""
    texts: tuple[str, ...]
    also_in_files: tuple[str, ...] = ()
    """Texts that a file may give."""
    paths: tuple[str, ...] = ()
    """Paths that the store's own library reads."""
    switches: tuple[str, ...] = ("allow_http",)
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Plain names by their other names, of a secret without ``_file``."""
    has_short_names: bool = False
    """Whether names do without the prefix."""
    connector: tuple[str, ...] = ()
    """Beginnings of Spark's settings that name the way to a store, or the caller."""

    @property
    def in_files(self) -> tuple[str, ...]:
        return (*self.also_in_files, *self.secrets)

    @property
    def names(self) -> tuple[str, ...]:
        files = (f"{name}_file" for name in self.in_files)
        return (*self.paths, *files, *self.texts, *self.switches, *PATIENCE)

    def are_in(self, environment: Mapping[str, str]) -> bool:
        told = {*self.paths, *self.in_files, *self.texts, *self.switches}
        prefix = self.prefix.upper()
        return any(
            value and name.startswith(prefix) and self._plain(name) in told
            for name, value in environment.items()
        )

    def checked(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return options by their plain names.

        Raises:
            ConfigError: a name is unknown or given twice, a secret is not in a file, a path is
                relative, a switch is neither true nor false, or a time is no number.
        """
        found: dict[str, str] = {}
        for written, value in given.items():
            name = self._plain(written)
            self._refuse(name, written, value)
            if name in found or name.removesuffix("_file") in found or f"{name}_file" in found:
                raise ConfigError(f"storage_options: found {name} twice, expected it once")
            found[name] = value
        for name in PATIENCE.keys() & found.keys():
            if not re.fullmatch(_NUMBERS[name == RETRIES], found[name]):
                expected = "a number" if name == RETRIES else 'a number of seconds, as "30s"'
                raise ConfigError(
                    f"storage_options: found {name} {found[name]!r}, expected {expected}"
                )
        return found

    def _plain(self, written: str) -> str:
        name = written.lower()
        if self.has_short_names:
            name = name.removeprefix(self.prefix)
        stem = name.removesuffix("_file")
        return self.other_names.get(stem, stem) + name[len(stem) :]

    def _refuse(self, name: str, written: str, value: str) -> None:
        if name in self.secrets:
            variable = (self.prefix + name.removeprefix(self.prefix)).upper()
            raise ConfigError(
                f"storage_options: found {name}, expected {name}_file, the absolute path of a file "
                f"that holds it, or {variable} in the environment of the driver and of executors; "
                "settings travel to where others can read them (docs/howto/object-stores.md)"
            )
        if name not in self.names:
            or_not = f", each with {self.prefix} before it or not" if self.has_short_names else ""
            raise ConfigError(
                f"storage_options: found {written!r}{did_you_mean(name, self.names)}, expected "
                f"only {', '.join(self.names)}{or_not}"
            )
        if name in self.switches and value.lower() not in ("true", "false"):
            raise ConfigError(f'storage_options: found {name} neither "true" nor "false"')
        if not value:
            raise ConfigError(f"storage_options: found {name} empty, expected a value")
        files = tuple(f"{each}_file" for each in self.in_files)
        path = Path(value).expanduser() if name in files else Path(value)
        if name in (*files, *self.paths) and not path.is_absolute():
            raise ConfigError(f"storage_options: found {name} relative, expected an absolute path")


S3: Final = StoreOptions(
    prefix="aws_",
    has_short_names=True,
    also_in_files=("access_key_id",),
    secrets=("secret_access_key", "session_token"),
    texts=("access_key_id", "region", "endpoint"),
    switches=("allow_http", "virtual_hosted_style_request"),
    other_names=MappingProxyType(
        {
            "default_region": "region",
            "endpoint_url": "endpoint",
            "endpoint_url_s3": "endpoint",
            "token": "session_token",
        }
    ),
)
GOOGLE: Final = StoreOptions(
    prefix="google_",
    secrets=("google_service_account_key",),
    paths=("google_service_account", "google_application_credentials"),
    texts=("google_base_url",),
    connector=(
        "spark.hadoop.fs.gs.auth.",
        "spark.hadoop.fs.gs.encryption.",
        "spark.hadoop.fs.gs.proxy.",
        "spark.hadoop.fs.gs.storage.",
        "spark.hadoop.fs.gs.token.",
        "spark.hadoop.google.cloud.auth.",
    ),
)
AZURE: Final = StoreOptions(
    prefix="azure_",
    secrets=(
        "azure_storage_account_key",
        "azure_storage_sas_key",
        "azure_storage_client_secret",
    ),
    paths=("azure_federated_token_file",),
    texts=(
        "azure_storage_account_name",
        "azure_storage_client_id",
        "azure_storage_tenant_id",
        "azure_storage_authority_host",
        "azure_storage_endpoint",
        "azure_msi_endpoint",
    ),
    switches=("allow_http", "azure_storage_use_emulator"),
    other_names=MappingProxyType(
        {
            "azure_client_id": "azure_storage_client_id",
            "azure_client_secret": "azure_storage_client_secret",
            "azure_tenant_id": "azure_storage_tenant_id",
            "azure_storage_access_key": "azure_storage_account_key",
            "azure_storage_sas_token": "azure_storage_sas_key",
        }
    ),
    connector=(
        "spark.hadoop.fs.azure.account.",
        "spark.hadoop.fs.azure.encryption.",
        "spark.hadoop.fs.azure.sas.",
    ),
)

CLOUDS: Final = MappingProxyType({"gs": GOOGLE, "az": AZURE, "abfs": AZURE, "abfss": AZURE})

IN_FILES: Final = (*S3.in_files, *GOOGLE.in_files, *AZURE.in_files)


def is_in_cloud(root: str) -> bool:
    return parts_of(root).scheme in CLOUDS


def checked_cloud_options(root: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return options by their plain names; raises as `StoreOptions.checked`."""
    return CLOUDS[parts_of(root).scheme].checked(given)


def cloud_way(
    root: str,
    given: Mapping[str, str],
    spark: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> dict[str, str] | None:
    """Return options that lead delta-rs and obstore to a root, without secrets.

    None if only Spark knows the way. Options come first. Without any, settings of Spark's connector
    come before the environment, which may be about another store.

    Raises:
        ConfigError: as `StoreOptions.checked`.
    """
    around = os.environ if environment is None else environment
    options = CLOUDS[parts_of(root).scheme]
    by_connector = any(key.startswith(options.connector) for key in spark)
    if not given and (by_connector or not options.are_in(around)):
        return None
    return {**PATIENCE, **options.checked(given)}
