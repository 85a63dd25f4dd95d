"""Reads secrets from files each time: a mounted secret may be replaced at any time."""

from pathlib import Path
from typing import Final

from dcp.errors import SecretError

_NEWEST: Final = "..data"
"""Kubernetes replaces this link in a mounted folder, whose files are links through it."""


def read_secret(path: Path, setting: str) -> str:
    """Return the first line of the file that a setting names.

    Raises:
        SecretError: it cannot be read. The message omits the path, which may be the secret by
            mistake.
    """
    try:
        text = path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "found no UTF-8"
        raise SecretError(f"{setting}: cannot read the file that it names: {why}") from None
    return text.split("\n", 1)[0].removesuffix("\r")


def read_account(folder: Path) -> tuple[str, str]:
    """Return user and password from a folder with these two files, both of one state of the
    folder.
    """
    path = folder.expanduser()
    newest = path / _NEWEST
    if newest.exists():
        path = newest.resolve()
    found = []
    for name in ("username", "password"):
        text = read_secret(path / name, "source.credentials_folder")
        if not text:
            raise SecretError(
                f"source.credentials_folder: the first line of the file {name} is empty, expected "
                f"the {name} in it"
            )
        found.append(text)
    return found[0], found[1]
