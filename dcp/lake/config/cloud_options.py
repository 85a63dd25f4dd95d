"""The way to Google's and Azure's object stores, in the options of delta-rs and Polars.

delta-rs and Polars take missing options from the environment, as the clouds' own tools do. Spark's
connectors have jars and settings of their own, in ``[spark.conf]``.
"""

import os
from collections.abc import Mapping

from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.store_options import CLOUDS, PATIENCE


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
        ConfigError: as `checked_cloud_options`.
    """
    around = os.environ if environment is None else environment
    options = CLOUDS[parts_of(root).scheme]
    by_connector = any(key.startswith(options.connector) for key in spark)
    if not given and (by_connector or not options.are_in(around)):
        return None
    return {**PATIENCE, **checked_cloud_options(root, given)}
