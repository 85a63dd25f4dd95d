"""The way to S3, in the options of delta-rs and Polars, and as settings of Spark's connector, S3A.

A name may have the prefix ``aws_``, in any case. The environment supplies missing options
(``AWS_REGION``, ``AWS_ENDPOINT_URL``), as for delta-rs and Polars.
"""

import configparser
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dcp.errors import ConfigError, SecretError
from dcp.lake.config.lake_root import S3_SCHEMES, parts_of
from dcp.lake.config.secret_files import read_secret
from dcp.lake.config.store_options import IN_FILES, PATIENCE, S3, is_in_cloud

KEYS: Final = S3.in_files
"""Key, secret and token of the caller; all but the first are secrets."""

_VARIABLES: Final = (
    ("region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    ("endpoint", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
    ("virtual_hosted_style_request", ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",)),
)
"""Spark and the AWS SDK find credentials of the environment by themselves."""

_GIVEN_BY: Final = f"an option, or one of {', '.join(dict(_VARIABLES)['endpoint'])}"

_S3A: Final = "spark.hadoop.fs.s3a."
S3A_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_AUTH: Final = "org.apache.hadoop.fs.s3a"
_PROVIDERS: Final = (
    f"{_AUTH}.TemporaryAWSCredentialsProvider",
    f"{_AUTH}.SimpleAWSCredentialsProvider",
    "dcplake.Credentials",
)
"""Keys of users' own lines come first. Then come those of our options, or the usual chain:
environment, web identity, profile, role. Our class (dcp/lake/spark/log_store) reads files again.
"""

LOG_STORE: Final = "dcplake.S3LogStore"
"""dcplake's class, by which Delta commits on S3."""
LOG_STORE_OF_ALL: Final = "spark.delta.logStore.class"

_CONNECTOR: Final = tuple(f"spark.hadoop.fs.{scheme}." for scheme in S3_SCHEMES)
_WAY: Final = (
    "access.key",
    "assumed.role.",
    "aws.credentials.",
    "bucket.",
    "encryption.",
    "endpoint",
    "path.style.access",
    "proxy.",
    "secret.key",
    "security.",
    "server-side-encryption",
    "session.token",
)
"""Prefixes of connector settings that name the way to a store, or the caller."""

_NO_ROLE: Final = ("role_arn", "sso_session", "sso_start_url", "credential_process")
"""Keys of a profile that has no credentials of its own."""

_ADDRESS: Final = re.compile(r"(?:[^.]+\.)?\d+\.\d+\.\d+\.\d+|.*:.*")
"""A host that is an IP address, perhaps with a bucket's name before it."""

_REGION_ELSEWHERE: Final = "us-east-1"
"""Only Amazon's stores have a region, but signatures need one; delta-rs uses the same."""


def checked_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return options by their plain names.

    Raises:
        ConfigError: as `StoreOptions.checked`; or a key lacks its secret, or the endpoint is no
            URL, or unencrypted without permission. The message shows no value, which may be a
            secret by mistake.
    """
    found = S3.checked(given)
    _require_plain_endpoint(found)
    if "endpoint" in found and found.get("allow_http", "").lower() != "true":
        url = urlsplit(found["endpoint"])
        if url.scheme == "http":
            raise ConfigError(
                f"storage_options: found the endpoint {url.hostname} with http, expected https, "
                'or allow_http = "true": others can read what is not encrypted'
            )
    plain = {name.removesuffix("_file") for name in found}
    if ("access_key_id" in plain) != ("secret_access_key" in plain):
        raise ConfigError(
            "storage_options: found one of access_key_id and secret_access_key, expected both or "
            "neither"
        )
    return found


def s3a_settings(
    root: str, given: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return Spark's settings for the store of these options, without secrets.

    They name the files with secrets, which must be readable. ``root`` is in that store; empty if
    the catalog knows.

    Raises:
        ConfigError: as `checked_options`.
        SecretError: a file with a secret cannot be read, or is empty; or one of AWS profiles is not
            of the format.
    """
    around = os.environ if environment is None else environment
    options = _with_environment(given, around)
    _read(options)
    settings = {f"spark.hadoop.fs.{scheme}.impl": S3A_CLASS for scheme in ("s3", "s3n")}
    settings[f"{_S3A}aws.credentials.provider"] = ",".join(_PROVIDERS)
    # The connector may be in Spark's own class path, which lacks our class.
    settings[f"{_S3A}classloader.isolation"] = "false"
    for name in (*KEYS, *(f"{each}_file" for each in KEYS)):
        if name in options:
            settings[f"{_S3A}dcplake.{name}"] = options[name]
    if "region" in options:
        settings[f"{_S3A}endpoint.region"] = options["region"]
    if "endpoint" in options:
        is_by_host = _is_by_host(options)
        endpoint = options["endpoint"]
        if is_by_host:  # delta-rs has the bucket in it then, S3A puts it there
            endpoint = endpoint.replace(f"://{parts_of(root).bucket}.", "://", 1)
        settings[f"{_S3A}endpoint"] = endpoint
        settings[f"{_S3A}path.style.access"] = str(not is_by_host).lower()
        settings.setdefault(f"{_S3A}endpoint.region", _REGION_ELSEWHERE)
    return settings


def options_of_delta_rs(
    root: str,
    given: Mapping[str, str],
    spark: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> dict[str, str] | None:
    """Return options that lead delta-rs and obstore to the store, without secrets.

    The options may travel to tasks; the process that opens the store adds keys by `with_secrets`.
    None if only Spark knows the way: by its connector's settings, or an AWS profile without keys.
    None, too, if the user chose another log store: it may keep the newest commits elsewhere, or
    overwrite ours.

    Raises:
        ConfigError: as `checked_options`.
        SecretError: a file of AWS profiles has another format.
    """
    around = os.environ if environment is None else environment
    if any(key.startswith(f"{each}{way}") for key in spark for each in _CONNECTOR for way in _WAY):
        return None
    if log_store_in(spark.get, root) not in (None, LOG_STORE):
        return None
    options = _with_environment(given, around)
    if not _names_keys(options, around) and _profile_keys(around) is None:
        return None
    options.setdefault("region", _REGION_ELSEWHERE)
    scheme, _, host = options.get("endpoint", "").partition("://")
    bucket = parts_of(root).bucket
    if host and _is_by_host(options) and not host.startswith(f"{bucket}."):
        options["endpoint"] = f"{scheme}://{bucket}.{host}"
    if scheme == "http":  # of an option it was allowed; of the environment S3A takes it, too
        options["allow_http"] = "true"
    return {**PATIENCE, **options}


def log_store_in(settings: Callable[[str], str | None], location: str) -> str | None:
    """Return the class by which Delta commits to a location on S3, as settings of Spark say it."""
    scheme = parts_of(location).scheme
    return settings(f"spark.delta.logStore.{scheme}.impl") or settings(LOG_STORE_OF_ALL)


def with_secrets(
    root: str, options: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options with this machine's keys: of files, environment or profile.

    Without keys delta-rs and obstore ask for a web identity, or the machine's role, and renew it.

    Raises:
        SecretError: a file with a secret cannot be read, or is empty; or one of AWS profiles is not
            of the format.
    """
    around = os.environ if environment is None else environment
    found = _read(options)
    if is_in_cloud(root):
        return found
    if not _names_keys(found, around):
        keys = _profile_keys(around) or {}
    elif KEYS[0] in found:
        keys = {}
    else:
        keys = {name: around.get(f"AWS_{name.upper()}", "") for name in KEYS}
    return found | {name: keys[name] for name in KEYS if keys.get(name)}


def _names_keys(options: Mapping[str, str], around: Mapping[str, str]) -> bool:
    """Return whether options or the environment name a key: profiles do not count then."""
    named = KEYS[0] in options or f"{KEYS[0]}_file" in options
    return named or bool(around.get(f"AWS_{KEYS[0].upper()}"))


def _profile_keys(around: Mapping[str, str]) -> dict[str, str] | None:
    """Return the keys of the profile; none of them for a role; None if only Spark knows the way."""
    if around.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {}
    profile = _profile(around)
    keys = [f"aws_{each}" for each in KEYS]
    if keys[0] in profile and keys[1] in profile:
        return {each.removeprefix("aws_"): profile[each] for each in keys if each in profile}
    has_another_way = any(key in profile for key in _NO_ROLE)
    return None if around.get("AWS_PROFILE") or has_another_way else {}


def _profile(around: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the AWS profile, of both files.

    Raises:
        SecretError: a file is not of the format.
    """
    home = around.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path's raises without a home
    folder = Path(home) / ".aws"
    name = around.get("AWS_PROFILE") or "default"
    found: dict[str, str] = {}
    for variable, file in (
        ("AWS_CONFIG_FILE", folder / "config"),
        ("AWS_SHARED_CREDENTIALS_FILE", folder / "credentials"),
    ):
        sections = _sections(around.get(variable) or str(file))
        for each in (f"profile {name}", name):
            if sections.has_section(each):
                found |= sections.items(each)
    return found


def _sections(file: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    try:
        found.read(file, "utf-8")
    except (configparser.Error, UnicodeDecodeError) as failure:
        raise SecretError(
            f"{file}: found {_fault(failure)}, expected lines as 'region = eu-west-1' below lines "
            "as '[default]'; mend the file of AWS profiles, or name another in AWS_CONFIG_FILE or "
            "AWS_SHARED_CREDENTIALS_FILE"
        ) from None  # its text shows the line, which may hold a secret
    return found


def _fault(failure: configparser.Error | UnicodeDecodeError) -> str:
    match failure:
        case configparser.DuplicateOptionError():
            return f"{failure.option} twice in [{failure.section}] (line {failure.lineno})"
        case configparser.DuplicateSectionError():
            return f"[{failure.section}] twice (line {failure.lineno})"
        case configparser.MissingSectionHeaderError():
            return f"no section above line {failure.lineno}"
        case configparser.ParsingError():
            return f"no setting in line {failure.errors[0][0]}"
        case _:
            return "bytes that are no UTF-8"


def _with_environment(given: Mapping[str, str], around: Mapping[str, str]) -> dict[str, str]:
    options = checked_options(given)
    for name, variables in _VARIABLES:
        value = next(filter(None, map(around.get, variables)), None)
        if value is not None:
            options.setdefault(name, value)
    if "region" not in options and "region" in (profile := _profile(around)):
        options["region"] = profile["region"]
    _require_plain_endpoint(options)
    return options


def _read(options: Mapping[str, str]) -> dict[str, str]:
    found = dict(options)
    for name in IN_FILES:
        if (file := found.pop(f"{name}_file", None)) is not None:
            setting = f"lake.storage_options.{name}_file"
            found[name] = read_secret(Path(file), setting)
            if not found[name]:
                raise SecretError(
                    f"{setting}: the first line of the file is empty, expected the value"
                )
    return found


def _is_by_host(options: Mapping[str, str]) -> bool:
    """Return whether the bucket's name stands in the host's name, and not in the path."""
    return options.get("virtual_hosted_style_request", "").lower() == "true"


def _require_plain_endpoint(options: Mapping[str, str]) -> None:
    """Raise ConfigError if the endpoint, of options or environment, is more than a URL."""
    if "endpoint" not in options:
        return
    url = urlsplit(options["endpoint"])
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            "storage_options: found an endpoint that is no URL, expected one as https://host:port "
            f"({_GIVEN_BY})"
        )
    if url.username or url.password:
        raise ConfigError(
            f"storage_options: found the endpoint {url.hostname} with a user or a password, "
            f"expected credentials where docs/howto/object-stores.md names them ({_GIVEN_BY})"
        )
    if _is_by_host(options) and _ADDRESS.fullmatch(url.hostname):
        raise ConfigError(
            f"storage_options: found the endpoint {url.hostname} with "
            "virtual_hosted_style_request, expected the name of a host, before which the bucket's "
            f"name can stand ({_GIVEN_BY})"
        )
    if url.query or url.fragment:
        raise ConfigError(
            f"storage_options: found the endpoint {url.hostname} with '?' or '#', expected one "
            f"as https://host:port ({_GIVEN_BY})"
        )
