"""Downloads the jars that Spark lacks, once, checks them by sha256, and uses them offline then.

``python -m dcp.lake.spark.jars s3`` fetches all, and prints their paths.

They come by their Maven coordinates through the resolver (Ivy) that Spark itself carries, so that
nothing but pyspark has to be installed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from dcp.errors import SetupError
from dcp.installation import how_to_install
from dcp.lake.spark.install_paths import jars_folder, spark_home
from dcp.lake.spark.jvm_environment import driver_java_options, environment, jvm_variables
from dcp.lake.spark.published_jars import DELTA, S3, JarSet
from dcp.lake.spark.trust_store import machine_certificates, write_trust_store

RESOLVE_TIMEOUT_SECONDS: Final = 600
UNKNOWN_AUTHORITY: Final = b"PKIX path building failed"  # Java's words for it

LOG_STORE_JAR: Final = Path(__file__).parent / "log_store" / "dcplake-s3-log-store.jar"
"""Commits to tables on S3; its source is beside it."""


def delta_jars() -> list[Path]:
    return fetched(DELTA)


def s3_jars() -> list[Path]:
    return fetched(S3)


def fetched(wanted: JarSet) -> list[Path]:
    """Return the checked files of a set; downloads the set if one is missing or damaged.

    Spark's own resolver honours the machine's Maven settings (``~/.m2``,
    ``DEFAULT_ARTIFACT_REPOSITORY``). Files appear in the folder once all have the right checksum,
    each in one step. So each of several processes gets whole files.

    Raises:
        SetupError: the download failed (names the log), or a file has another checksum.
    """
    folder = jars_folder()
    kept = {jar: folder / jar.file_name for jar in wanted.jars}
    if any(_sha256(path) != jar.sha256 for jar, path in kept.items()):
        _download(wanted, folder)
    return list(kept.values())


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return ""


def _download(wanted: JarSet, folder: Path) -> None:
    what = f"the {wanted.title} ({wanted.megabytes} MB, once)"
    print(f"dcplake: fetching {what} into {folder}", file=sys.stderr, flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = tempfile.TemporaryDirectory(dir=folder, prefix=".download-")
    except OSError as error:
        raise SetupError(
            f"The folder for the {wanted.title} cannot be written: {error}; DCPLAKE_JARS names "
            "another."
        ) from error
    with staging as name:
        ivy = Path(name)
        _run_ivy(wanted, ivy, folder)
        install_jars(wanted, ivy / "jars", folder)


def install_jars(wanted: JarSet, source: Path, folder: Path) -> None:
    """Check all jars that Ivy left in ``source``, then move them into ``folder``."""
    downloads = {jar: source / jar.download_name for jar in wanted.jars}
    for jar, path in downloads.items():
        if not path.is_file():
            raise SetupError(
                f"The download of the {wanted.title} brought no {path.name};"
                f" put {jar.file_name} (sha256 {jar.sha256}) into {folder} by hand."
            )
        if (found := _sha256(path)) != jar.sha256:
            raise SetupError(
                f"{path} is not the published {jar.file_name}: found sha256 {found}, expected"
                f" {jar.sha256}; run again, and if it stays so, ask who runs the Maven repository."
            )
    for jar, path in downloads.items():
        try:
            path.replace(folder / jar.file_name)
        except OSError as error:
            raise SetupError(
                f"{folder / jar.file_name}: cannot put the jar there: {error.strerror}; remove "
                "what is there, or name another folder with DCPLAKE_JARS"
            ) from error


def _run_ivy(wanted: JarSet, ivy: Path, folder: Path) -> None:
    """Resolve the packages of a set into ``ivy``.

    Retries with the machine's own authorities if Java does not trust the repository.
    """
    (ivy / "nothing.py").write_text("", encoding="utf-8")
    with tempfile.NamedTemporaryFile(prefix="dcplake-jars-", suffix=".log", delete=False) as draft:
        log = Path(draft.name)
    failure = _submit_nothing(wanted, ivy, log, java_options="")
    if failure and UNKNOWN_AUTHORITY in log.read_bytes() and (known := machine_certificates()):
        write_trust_store(ivy / "authorities.jks", known)
        trust = f'"-Djavax.net.ssl.trustStore={ivy / "authorities.jks"}"'
        failure = _submit_nothing(wanted, ivy, log, java_options=trust)
    if failure:
        raise SetupError(
            f"The {wanted.title} ({', '.join(wanted.packages)}) could not be downloaded: {failure},"
            f" see {log};"
            " check that a Maven repository is reachable (DEFAULT_ARTIFACT_REPOSITORY names it),"
            f" or put {', '.join(jar.file_name for jar in wanted.jars)} into {folder} by hand."
        )
    log.unlink()


def _submit_nothing(wanted: JarSet, ivy: Path, log: Path, java_options: str) -> str:
    """Let ``spark-submit`` resolve its packages and run an empty program.

    Returns the reason of a failure, or an empty text.
    """
    home = _spark_home()
    settings = {
        "spark.jars.packages": ",".join(wanted.packages),
        "spark.jars.excludes": ",".join(wanted.excluded),
        "spark.jars.ivy": str(ivy),
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    theirs = os.environ.get("SPARK_SUBMIT_OPTS", "")
    variables = jvm_variables(settings["spark.master"]) | {
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": f"{driver_java_options()} {theirs} {java_options}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with log.open("ab") as output, environment(variables):
        try:
            code = subprocess.run(
                [home / "bin" / "spark-submit", *options, ivy / "nothing.py"],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=RESOLVE_TIMEOUT_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"no end within {RESOLVE_TIMEOUT_SECONDS} s"
    return f"Spark's resolver ended with code {code}" if code else ""


def _spark_home() -> Path:
    if (home := spark_home()) is not None:
        return home
    if (theirs := os.environ.get("SPARK_HOME")) is not None:
        return Path(theirs)
    raise SetupError(f"The package pyspark is missing: run {how_to_install()}.")


def main() -> int:
    """Print the jars for ``--jars`` of a session that others start; with ``s3`` those of S3, too.

    Returns the exit code.
    """
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
