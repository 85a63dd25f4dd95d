"""``dcplake init``: writes a configuration file, by asking the user and the cluster.

What no option tells is asked on a terminal; anywhere else it has its default. The password is
asked for too, where it is not found, and written nowhere.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from dcp.cli.options.lake_options import Overrides, override_values
from dcp.cli.options.setting_options import option_of
from dcp.cli.terminal.output import say
from dcp.errors import BucketError, ConfigError, SetupError, SourceError
from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings

if TYPE_CHECKING:
    from dcp.protocol.credentials import Credentials

EPILOG: Final = """\
On a terminal it asks for what no option tells. Elsewhere the defaults of docs/reference/settings.md
hold, and --username is needed, or --set source.tls_cert_file=FILE, or
--set source.credentials_folder=FOLDER.
The file has no password: it names the variable or the file that has it. It has absolute paths; you
may tell them relative to the current folder."""

_FILE: Final = Path("dcplake.toml")
_SAY_WHO: Final = {"source.credentials_folder", "source.tls_cert_file"}
"""Settings that say who signs in, without a user."""


def run(  # noqa: PLR0913  (an argument for each option)
    *,
    file: Annotated[Path, Argument(metavar="FILE", help="the file to write")] = _FILE,
    seed: Annotated[
        list[str] | None,
        Option(
            "--seed",
            metavar="HOST:PORT",
            help="a node of the cluster (repeatable), or a connection string",
        ),
    ] = None,
    bucket: Annotated[str | None, option_of(SourceSettings, "bucket", "NAME")] = None,
    username: Annotated[str | None, option_of(SourceSettings, "username", "NAME")] = None,
    password_env: Annotated[str | None, option_of(SourceSettings, "password_env", "NAME")] = None,
    password_file: Annotated[str | None, option_of(SourceSettings, "password_file", "FILE")] = None,
    tls: Annotated[bool | None, option_of(SourceSettings, "tls")] = None,
    tls_ca_file: Annotated[
        str | None,
        Option(metavar="FILE", help="PEM file of certificates to trust; encrypts connections"),
    ] = None,
    root: Annotated[str | None, option_of(LakeSettings, "root", "PATH")] = None,
    overrides: Overrides = None,
) -> int:
    """Ask, look at the cluster, and write."""
    from dcp.cli.displays.bucket_probe import probe_bucket
    from dcp.lake.config.settings_document import document_of
    from dcp.lake.config.settings_load import load_settings, with_paths_resolved

    _require_free(file)
    told = {
        "seeds": ",".join(seed) if seed else None,
        "bucket": bucket,
        "username": username,
        "password_env": password_env,
        "password_file": password_file,
        "tls": "true" if tls or tls_ca_file else "false" if tls is False else None,
        "tls_ca_file": tls_ca_file,
    }
    given = override_values(overrides)
    given |= {f"source.{name}": value for name, value in told.items() if value is not None}
    given |= {"lake.root": root} if root is not None else {}
    try:
        values, credentials = _ask_all(given, file)
    except typer.Abort:
        raise KeyboardInterrupt from None
    values = with_paths_resolved(values, Path.cwd())
    settings = load_settings(None, {}, values)
    probe = probe_bucket(settings, credentials)
    say(str(probe))
    for node, reason in probe.cluster.unreachable.items():
        say(f"node {node} cannot be reached: {reason}")
    if probe.offers_tls and not settings.source.connection_string().tls:
        say("the nodes offer TLS: with --tls or --tls-ca-file connections are encrypted")
    _write(file, document_of(settings, values))
    _say_next(file, settings)
    return 0


def _require_free(file: Path) -> None:
    """Raise ConfigError where the file cannot be a new one."""
    if file.exists():
        raise ConfigError(f"{file}: found a file, expected none: name another one, or remove it")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: found no folder {file.parent}, expected one: make it")


def _ask_all(given: Mapping[str, object], file: Path) -> "tuple[dict[str, object], Credentials]":
    """Return the settings for the file, by their names, and the credentials for the cluster.

    Raises:
        ConfigError: something is missing, and there is no terminal to ask on; or it is wrong.
        SourceError: the cluster cannot be asked, or the bucket is none of its buckets.

    """
    from dcp.lake.config.lake_root import is_on_s3
    from dcp.lake.config.settings_load import load_settings, resolved

    values = dict(given)
    defaults = SourceSettings()

    def ask(key: str, question: str, default: object, **how: Any) -> None:
        if key not in values and sys.stdin.isatty():
            values[key] = typer.prompt(question, default=default, **how)

    ask("source.seeds", "Nodes of the cluster, commas between", ",".join(defaults.seeds))
    values.setdefault("source.seeds", ",".join(defaults.seeds))
    seeds = load_settings(None, {}, values).source.connection_string()
    if not seeds.tls and "source.tls" not in values and sys.stdin.isatty():
        values["source.tls"] = "true" if typer.confirm("Encrypt connections (TLS)") else "false"
    if seeds.tls or values.get("source.tls") == "true":
        ask("source.tls_ca_file", "PEM file of who to trust (empty: as the system)", "")
    if not values.keys() & _SAY_WHO:
        ask("source.username", "User", None)
    settings = load_settings(None, {}, values)
    credentials = _credentials(settings)
    buckets = _buckets(settings, credentials)
    default = buckets[0] if len(buckets) == 1 else defaults.bucket
    known = _known_bucket(buckets)
    question = f"Bucket ({', '.join(buckets)})" if buckets else "Bucket"
    ask("source.bucket", question, default, value_proc=known)
    try:
        known(str(values.setdefault("source.bucket", default)))
    except typer.BadParameter as error:
        raise BucketError(f"source.bucket: {error.message}") from None
    if "lake.schema" not in values:
        default = resolved("lake.root", settings.lake.root, file.absolute().parent)
        ask("lake.root", "Folder of the tables, or s3://bucket/path", default)
        values.setdefault("lake.root", default)
        if is_on_s3(str(values["lake.root"])) and "lake.storage_options" not in values:
            values |= _ask_way()
    return values, credentials


def _ask_way() -> dict[str, object]:
    """Ask how to reach the object store, and where its credentials are; they are not read."""
    if not sys.stdin.isatty():
        return {}
    way = {}

    def ask(name: str, question: str) -> str:
        if answer := str(typer.prompt(question, default="", show_default=False)).strip():
            way[name] = answer
        return answer

    endpoint = ask("endpoint", "URL of the object store's server (empty: Amazon's, or environment)")
    if endpoint.startswith("http:"):
        way["allow_http"] = "true"
    question = "Access key (empty: environment, profile, web identity or role)"
    if ask("access_key_id", question):
        file = typer.prompt("File with its secret in the first line")
        way["secret_access_key_file"] = str(Path(file).expanduser().absolute())
    return {"lake.storage_options": way} if way else {}


def _credentials(settings: Settings) -> "Credentials":
    """Return user and password; a password that is not found is asked for on a terminal."""
    source = settings.source
    environment: Mapping[str, str] = os.environ
    is_missing = not source.password_file and not environment.get(source.password_env)
    if source.username and is_missing and sys.stdin.isatty():
        question = f"Password of {source.username} (it is not written)"
        environment = {source.password_env: typer.prompt(question, hide_input=True)}
    return source.credentials(environment)


def _buckets(settings: Settings, credentials: "Credentials") -> list[str]:
    """Return the buckets to choose from; none where the node does not tell."""
    from dcp.cli.displays.bucket_probe import list_buckets
    from dcp.errors import AuthenticationError, NodeUnavailableError

    try:
        return list_buckets(settings, credentials)
    except (AuthenticationError, NodeUnavailableError):
        raise
    except SourceError:
        return []


def _known_bucket(buckets: list[str]) -> Callable[[str], str]:
    """Return the check of a bucket's name, for typer to ask again."""

    def check(name: str) -> str:
        if buckets and name not in buckets:
            raise typer.BadParameter(
                f"found {name!r}, expected a bucket that this user has access to: "
                f"{', '.join(buckets)}"
            )
        return name

    return check


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        _require_free(file)
    except OSError as error:
        raise SetupError(
            f"{file}: cannot write it: {error.strerror}; expected a folder that this user can "
            "write to"
        ) from None


def _say_next(file: Path, settings: Settings) -> None:
    source = settings.source
    say(f"wrote {file}; next:")
    if source.username and not source.password_file and not os.environ.get(source.password_env):
        say(f"  export {source.password_env}=…    # the password of {source.username}")
    if settings.lake.on_s3 and not _has_keys(settings.lake.storage_options):
        say("  export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…    # or a profile, or a role")
    say(f"  dcplake doctor --config {quote(str(file))}")
    say(f"  dcplake run --config {quote(str(file))} --once")


def _has_keys(options: Mapping[str, str]) -> bool:
    """Return whether options or the environment say who asks the store."""
    from dcp.lake.config.storage_options import KEYS

    return "AWS_PROFILE" in os.environ or any(
        name in options or f"{name}_file" in options or f"AWS_{name.upper()}" in os.environ
        for name in KEYS
    )
