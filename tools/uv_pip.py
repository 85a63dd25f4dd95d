"""Runs ``uv pip`` in this Python's environment, from where the machine's pip gets its packages.

    .venv/bin/python tools/uv_pip.py install --require-hashes -r FILE

uv reads neither pip's files nor its ``PIP_*`` variables; both are asked for with
``pip config list`` and handed on in uv's own variables. One of those that is set already wins.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

UV_VARIABLES: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "default-timeout": "UV_HTTP_TIMEOUT",  # PIP_DEFAULT_TIMEOUT
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
"""Each setting of pip's that says where packages come from, and uv's variable for it."""

_RISING: Final = ("global", "install", ":env:")
"""The sections of pip's configuration that count for ``pip install``; later ones win."""

_DEFAULTS: Final = {
    # pip looks into all its indexes, uv by default into the first that knows the package. Hashes
    # decide what is taken either way.
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    # PySpark comes without a wheel. The one that is built of it is unpacked at once: half a minute
    # of compressing 400 MB that are compressed already is saved (setuptools reads this).
    "DIST_EXTRA_CONFIG": str(Path(__file__).with_name("build.cfg").resolve()),
}


def pip_settings(listed: str) -> dict[str, str]:
    """Return what ``pip config list`` printed, by name without its section.

    A setting of several values holds them one after the other with blanks between.
    """
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in _RISING:
        for key, _, value in lines:
            found, _, name = key.rpartition(".")
            if found == section:
                settings[name] = " ".join(ast.literal_eval(value).split())
    return settings


def uv_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables for these settings of pip's."""
    values = {
        variable: settings[name] for name, variable in UV_VARIABLES.items() if settings.get(name)
    }
    if "UV_FIND_LINKS" in values:
        values["UV_FIND_LINKS"] = values["UV_FIND_LINKS"].replace(" ", ",")
    return _DEFAULTS | values


def main(words: list[str]) -> None:
    """Become ``uv pip`` with these words."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    uv = Path(sys.prefix) / "bin" / "uv"
    command = [str(uv), "pip", *words, "--python", sys.executable]
    os.execve(uv, command, uv_environment(pip_settings(listed)) | os.environ)  # noqa: S606 - meant


if __name__ == "__main__":
    main(sys.argv[1:])
