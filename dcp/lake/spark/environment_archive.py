"""Packs the Python environment of tasks into one file, for ``spark-submit --archives``.

The file is a virtual environment with dcplake, its requirements and the Delta jars. The library
``venv-pack`` is unsuitable: it packs all that is installed, including Spark. For an editable
installation (`make setup`) it only packs a reference to the checkout.
"""

import sys
import sysconfig
import tarfile
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dcp.errors import SetupError
from dcp.installation import how_to_install
from dcp.lake.spark.jars import delta_jars

_OURS: Final = ("dcp", "dcp.schemas", "dcplake", "pyspark_dcp")
_OF_THE_CLUSTER: Final = frozenset({"pyspark", "py4j"})
"""A cluster's own Spark gives these packages to its Python workers."""

_Required = tuple[str, frozenset[str]]


def python_of_archive() -> Path:
    """Return the Python that an archive needs at the same path wherever it is unpacked."""
    return Path(sys.executable).resolve()


def write_environment_archive(path: Path) -> list[str]:
    """Write this Python's environment as a gzipped tar file, completely or not at all.

    Returns the names of its packages.

    Raises:
        SetupError: a package is missing or does not list its files, the jars cannot be fetched, or
            the file cannot be written.
    """
    required: dict[_Required, Distribution] = {}
    _add_required(_installed("dcplake"), frozenset(), required)
    packages = {name: package for (name, _), package in required.items()}
    site = Path(sysconfig.get_path("purelib", "venv", {"base": "."}))
    files = {site / name: found for name, found in _files_of(packages.values())}
    files |= {site / name: found for name, found in _own_files()}
    files |= {Path("share", "dcplake", "jars", jar.name): jar for jar in delta_jars()}
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as draft:
            new = Path(draft.name)
            try:
                _write(draft, files)
                new.chmod(0o644)
                new.replace(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise SetupError(
            f"{path}: cannot write it: {error.strerror or error}; expected a file in a folder that"
            " is there, that this user can write to, and that has room for some 200 MB"
        ) from error
    return list(packages)


def _write(file: IO[bytes], files: Mapping[Path, Path]) -> None:
    python = python_of_archive()
    settings = f"home = {python.parent}\ninclude-system-site-packages = false\n".encode()
    # Links to a checkout or to another environment would break elsewhere, so they become files.
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, dereference=True) as archive:
        entry = tarfile.TarInfo("pyvenv.cfg")
        entry.size = len(settings)
        archive.addfile(entry, BytesIO(settings))
        entry = tarfile.TarInfo("bin/python")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(python)
        archive.addfile(entry)
        for name, found in files.items():
            archive.add(found, name, recursive=False)
    file.flush()


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise SetupError(
            f"The package {name} is not installed in {sys.prefix}: with this environment run"
            f" {how_to_install()}."
        ) from error


def _add_required(
    package: Distribution, extras: frozenset[str], found: dict[_Required, Distribution]
) -> None:
    for each in map(Requirement, package.requires or ()):
        name, wanted = canonicalize_name(each.name), frozenset(each.extras)
        marker = each.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        if name not in _OF_THE_CLUSTER and (name, wanted) not in found:
            found[name, wanted] = _installed(name)
            _add_required(found[name, wanted], wanted, found)


def _files_of(packages: Collection[Distribution]) -> Iterator[tuple[str, Path]]:
    for package in packages:
        if package.files is None:
            raise SetupError(
                f"The package {package.name} has no list of its files: packages of the system may"
                " lack one. Install dcplake into a virtual environment, and use its Python here."
            )
        for file in package.files:
            found = Path(str(package.locate_file(file)))
            if ".." not in file.parts and found.is_file():  # files above are scripts
                yield str(file), found


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield dcplake's files, found by import: an editable installation does not list them."""
    for name in _OURS:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None, name
        origin = Path(spec.origin)
        if spec.submodule_search_locations is None:
            yield origin.name, origin
            continue
        for found in origin.parent.rglob("*"):
            if found.is_file() and found.parent.name != "__pycache__":
                yield f"{name.replace('.', '/')}/{found.relative_to(origin.parent)}", found
