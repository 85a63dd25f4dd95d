"""Downloads the jars that Spark lacks, checks them by sha256, and then uses them offline.

``python -m dcp.lake.spark.jars s3`` fetches all, and prints their paths. The lists beside this
module name every file; ``sha256sum --check`` can check a copy of a Maven repository with them.
"""

import hashlib
import os
import re
import sys
import tempfile
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import Final
from urllib.parse import unquote, urlsplit

from dcp.errors import SetupError
from dcp.lake.spark.install_paths import jars_folder
from dcp.printable import printable

_VARIABLE: Final = "DEFAULT_ARTIFACT_REPOSITORY"
_MAVEN_CENTRAL: Final = "https://repo1.maven.org/maven2"
_DOWNLOAD_TIME: Final = timedelta(minutes=10)
_LISTS: Final = Path(__file__).parent

_ANSWER: Final = re.compile(r"Error performing GET (\S+) .*?status code: ([^:]*)(?::(.*))?")
"""The format in which obstore reports a server's answer."""
_MARKUP: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>?", re.IGNORECASE)
_PAGE_BEGIN: Final = 2000
_MOST_WORDS: Final = 80
"""The most characters of a server's answer that a message shows."""

LOG_STORE_JAR: Final = _LISTS / "log_store" / "dcplake-s3-log-store.jar"
"""The log store for tables on S3; its Java code is in the same folder."""


@dataclass(frozen=True, slots=True)
class JarSet:
    title: str
    megabytes: int
    files: Path
    """A file with one line for each jar: its sha256, and its path in a Maven repository."""

    def checksums(self) -> dict[PurePosixPath, str]:
        lines = (line.split() for line in self.files.read_text("ascii").splitlines())
        return {PurePosixPath(path): checksum for checksum, path in lines}


# pyspark has newer versions of some of Delta's dependencies (Hadoop, Parquet, Jackson, slf4j,
# RoaringBitmap), and a second copy on the class path would conflict. Others belong to Unity
# Catalog, which dcplake does not use. For S3, the list has Hadoop's connector and the parts of the
# AWS SDK that it needs; its own dependency is the whole SDK in one jar (``bundle``, 690 MB).
DELTA: Final = JarSet("Delta jars", 12, _LISTS / "delta_jars.sha256")
S3: Final = JarSet("S3 jars", 13, _LISTS / "s3_jars.sha256")


def delta_jars() -> list[Path]:
    return fetched(DELTA)


def s3_jars() -> list[Path]:
    return fetched(S3)


def fetched(wanted: JarSet) -> list[Path]:
    """Return the checked files of a set; download the set if a file is missing or damaged.

    ``DEFAULT_ARTIFACT_REPOSITORY`` names the Maven repository, as for Spark.

    Raises:
        SetupError: the download failed, a file has another checksum, or the folder is not writable.
    """
    folder, checksums = jars_folder(), wanted.checksums()
    kept = {folder / path.name: checksum for path, checksum in checksums.items()}
    if any(_sha256(path) != checksum for path, checksum in kept.items()):
        what = f"the {wanted.title} ({wanted.megabytes} MB, once)"
        print(f"dcplake: fetching {what} into {folder}", file=sys.stderr, flush=True)
        try:
            _download(wanted, folder)
        except OSError as error:
            raise SetupError(
                f"{folder}: cannot put the {wanted.title} there: {error}; remove what is in the "
                "way, or name another folder with DCPLAKE_JARS"
            ) from error
    return list(kept)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return ""


def _download(wanted: JarSet, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as staging:
        names = []
        for path, checksum in wanted.checksums().items():
            content = _content(wanted, path, folder)
            if (found := hashlib.sha256(content).hexdigest()) != checksum:
                raise SetupError(
                    f"{path} is not the published file: found sha256 {found}, expected {checksum}; "
                    "run again, and if it stays so, ask who runs the Maven repository"
                )
            Path(staging, path.name).write_bytes(content)
            names.append(path.name)
        # All checksums are right by now. A rename is atomic, so other processes see whole files.
        for name in names:
            Path(staging, name).replace(folder / name)


def _content(wanted: JarSet, path: PurePosixPath, folder: Path) -> bytes:
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore

    repository, headers = _repository()
    try:
        store = HTTPStore.from_url(
            repository,
            client_options={
                "allow_http": True,
                "timeout": _DOWNLOAD_TIME,
                "default_headers": headers,
            },
            retry_config={"max_retries": 3},
        )
        return bytes(store.get(str(path)).bytes())
    except (BaseError, OSError, ValueError) as error:
        raise SetupError(
            f"The {wanted.title} could not be downloaded from {repository}: {_told(error)}; "
            f"see that it can be reached, or name another Maven repository with {_VARIABLE}, or "
            f"put the files of {wanted.files} into {folder} by hand"
        ) from error


def _told(failure: BaseException) -> str:
    """Return a failure as one line; for a server's answer: URL, status and first words."""
    from dcp.lake.store.failures import plain_line

    told = plain_line(failure)
    if (answer := _ANSWER.search(told)) is None:
        return told
    url, status, page = answer.groups("")
    # Proxies answer with whole HTML pages.
    words = shorten(_MARKUP.sub(" ", page[:_PAGE_BEGIN]), _MOST_WORDS, placeholder=" …")
    return printable(f"{url}: {status}{f': {words}' if words else ''}")


def _repository() -> tuple[str, dict[str, str]]:
    """Return the Maven repository's URL without credentials, and headers with the credentials.

    It raises SetupError if it is not an HTTP URL; the message contains no secret.
    """
    url = urlsplit(os.environ.get(_VARIABLE) or _MAVEN_CENTRAL)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise SetupError(
            f"{_VARIABLE}: found {f'the scheme {url.scheme}' if url.scheme else 'no URL'}"
            f"{' and a query' if url.query else ''}, expected https://host/path of a Maven "
            "repository; with a user and a password as https://user:password@host/path"
        )
    user, _, host = url.netloc.rpartition("@")
    headers = {}
    if user:
        told = b64encode(unquote(user).encode()).decode()
        headers["Authorization"] = f"Basic {told}"
    return url._replace(netloc=host).geturl(), headers


def main() -> int:
    """Print the jars for the ``--jars`` of another session; with ``s3`` also those for S3."""
    words = sys.argv[1:]
    if words not in ([], ["s3"]):
        print(f"dcplake: found {' '.join(words)!r}, expected s3 or nothing", file=sys.stderr)
        return 2
    try:
        jars = [*delta_jars(), LOG_STORE_JAR, *(s3_jars() if words else ())]
    except SetupError as error:
        print(f"dcplake: {error}", file=sys.stderr)
        return error.exit_code
    print(",".join(map(str, jars)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
