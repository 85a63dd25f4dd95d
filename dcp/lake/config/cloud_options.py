"""The way to Google's and Azure's object stores, in the options of delta-rs and Polars.

What no option says those two look for in the environment, as the clouds' own tools do. Spark's
connectors have jars and settings of their own, which are lines of ``[spark.conf]``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from dcp.errors import ConfigError
from dcp.lake.config.patience import PATIENCE, checked_patience
from dcp.suggestions import did_you_mean

_GOOGLE: Final = "google_"
_AZURE: Final = "azure_"
_PREFIXES: Final = MappingProxyType({"gs": _GOOGLE, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE})
"""By the scheme of a URL, how its options begin."""

SECRETS: Final = (
    "google_service_account_key",
    "azure_storage_account_key",
    "azure_storage_sas_key",
    "azure_storage_client_secret",
)
"""Each is given by a file: with ``_file`` behind its name."""

_PATHS: Final = (
    "google_service_account",
    "google_application_credentials",
    "azure_federated_token_file",
    *(f"{name}_file" for name in SECRETS),
)

_TEXTS: Final = (
    "google_base_url",
    "azure_storage_account_name",
    "azure_storage_client_id",
    "azure_storage_tenant_id",
    "azure_storage_authority_host",
    "azure_storage_endpoint",
    "azure_storage_use_emulator",
    "azure_msi_endpoint",
)

_OF_ALL: Final = ("allow_http", *PATIENCE)


def is_in_cloud(root: str) -> bool:
    """Return whether a root is in a store of Google or Azure."""
    return urlsplit(root).scheme in _PREFIXES


def checked_cloud_options(root: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return options for the store of a root.

    Raises:
        ConfigError: a name is unknown, a secret is not in a file, or a path is relative. Says no
            value, which may be a secret by a mistake.

    """
    prefix = _PREFIXES[urlsplit(root).scheme]
    names = [name for name in (*_PATHS, *_TEXTS) if name.startswith(prefix)] + [*_OF_ALL]
    found = {}
    for written, value in given.items():
        name = written.lower()
        if name in SECRETS:
            raise ConfigError(
                f"storage_options: found {name}, expected {name}_file, the absolute path of a file "
                "that holds it: settings travel to where others can read them "
                "(docs/object-stores.md)"
            )
        if name not in names:
            raise ConfigError(
                f"storage_options: found {written!r}{did_you_mean(name, names)}, expected only "
                f"{', '.join(names)}"
            )
        if name in _PATHS and not Path(value).is_absolute():
            raise ConfigError(f"storage_options: found {name} relative, expected an absolute path")
        found[name] = value
    checked_patience(found)
    return found


def cloud_way(
    root: str, given: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """Return options that lead delta-rs and obstore to a root, without secrets.

    None where neither options nor the environment say anything: only Spark may know the way then.

    Raises:
        ConfigError: as `checked_cloud_options`.

    """
    around = os.environ if environment is None else environment
    prefix = _PREFIXES[urlsplit(root).scheme].upper()
    if not given and not any(name.startswith(prefix) for name in around):
        return None
    return {**PATIENCE, **checked_cloud_options(root, given)}
