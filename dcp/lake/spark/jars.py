"""The four jars that Delta needs: downloaded once, checked by sha256, then used offline.

They come by their Maven coordinates through the resolver (Ivy) that Spark itself carries, so that
nothing but pyspark has to be installed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dcp.errors import SetupError
from dcp.installation import how_to_install
from dcp.lake.spark.install_paths import jars_folder, spark_home
from dcp.lake.spark.jvm_environment import driver_java_options, environment, jvm_variables
from dcp.lake.spark.trust_store import machine_certificates, write_trust_store

DELTA_VERSION: Final = "4.4.0"
RESOLVE_TIMEOUT_SECONDS: Final = 600
UNKNOWN_AUTHORITY: Final = b"PKIX path building failed"  # Java's words for it

DELTA_PACKAGE: Final = f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}"

# Everything else in Delta's dependency tree is either in pyspark already, newer (Hadoop, Parquet,
# Jackson, slf4j, RoaringBitmap: a second copy of them on the class path is trouble), or belongs to
# Unity Catalog, which nothing here uses.
EXCLUDED_PACKAGES: Final = (
    "org.apache.hadoop:*",
    "org.apache.parquet:*",
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "org.slf4j:*",
    "org.roaringbitmap:*",
    "com.google.code.findbugs:*",
    "io.unitycatalog:*",
    "org.apache.logging.log4j:*",
    "org.locationtech.jts:*",
    "io.delta:delta-kernel-unitycatalog",
)


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar that Delta needs, and the checksum of the only file that we accept for it."""

    artifact: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name under which the jar is kept."""
        return f"{self.artifact}-{DELTA_VERSION}.jar"


DELTA_JARS: Final = (
    Jar("delta-spark_4.2_2.13", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    Jar("delta-storage", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar("delta-kernel-api", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    Jar(
        "delta-kernel-defaults", "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
    ),
)


def delta_jars() -> list[Path]:
    """The four jars, checked, for ``spark.jars``; fetched first where one is missing or damaged.

    They come through Spark's own resolver, which honours the machine's Maven settings
    (``~/.m2``, ``DEFAULT_ARTIFACT_REPOSITORY``). They appear in the folder only when all four have
    the right checksum, each in one step: of several processes at once, each gets whole ones.

    Raises:
        SetupError: the download failed (names the log), or a file has another checksum.

    """
    folder = jars_folder()
    kept = {jar: folder / jar.file_name for jar in DELTA_JARS}
    if any(_sha256(path) != jar.sha256 for jar, path in kept.items()):
        _download(folder)
    return list(kept.values())


def _sha256(path: Path) -> str:
    """Return the checksum of a file; empty where there is none that can be read."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return ""


def _download(folder: Path) -> None:
    print(
        f"dcplake: fetching the Delta jars (12 MB, once) into {folder}", file=sys.stderr, flush=True
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = tempfile.TemporaryDirectory(dir=folder, prefix=".download-")
    except OSError as error:
        raise SetupError(
            f"The folder for the Delta jars cannot be written: {error}; DCPLAKE_JARS names another."
        ) from error
    with staging as name:
        ivy = Path(name)
        _run_ivy(ivy, folder)
        install_jars(ivy / "jars", folder)


def install_jars(source: Path, folder: Path) -> None:
    """Check all four jars that Ivy left in ``source``, then move them into ``folder``.

    Raises:
        SetupError: one is missing or has another checksum; nothing was moved then.

    """
    # Ivy puts the Maven group in front of the name.
    downloads = {jar: source / f"io.delta_{jar.file_name}" for jar in DELTA_JARS}
    for jar, path in downloads.items():
        if not path.is_file():
            raise SetupError(
                f"The download of {DELTA_PACKAGE} brought no {path.name};"
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


def _run_ivy(ivy: Path, folder: Path) -> None:
    """Resolve the package into ``ivy``; where Java does not trust the repository, ask the machine.

    Raises:
        SetupError: it failed; names the log.

    """
    (ivy / "nothing.py").write_text("", encoding="utf-8")
    with tempfile.NamedTemporaryFile(prefix="dcplake-jars-", suffix=".log", delete=False) as draft:
        log = Path(draft.name)
    failure = _submit_nothing(ivy, log, java_options="")
    if failure and UNKNOWN_AUTHORITY in log.read_bytes() and (known := machine_certificates()):
        write_trust_store(ivy / "authorities.jks", known)
        trust = f'"-Djavax.net.ssl.trustStore={ivy / "authorities.jks"}"'
        failure = _submit_nothing(ivy, log, java_options=trust)
    if failure:
        raise SetupError(
            f"The Delta jars ({DELTA_PACKAGE}) could not be downloaded: {failure}, see {log};"
            " check that a Maven repository is reachable (DEFAULT_ARTIFACT_REPOSITORY names it),"
            f" or put {', '.join(jar.file_name for jar in DELTA_JARS)} into {folder} by hand."
        )
    log.unlink()


def _submit_nothing(ivy: Path, log: Path, java_options: str) -> str:
    """Run an empty program under ``spark-submit``, which resolves its packages first.

    Returns why it failed, or an empty text.
    """
    home = _spark_home()
    settings = {
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.jars.excludes": ",".join(EXCLUDED_PACKAGES),
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
