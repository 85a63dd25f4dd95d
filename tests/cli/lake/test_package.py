"""``dcplake package`` where it cannot write an archive; `test_standalone_cluster` uses one."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.errors import SetupError
from dcp.lake.spark import environment_archive


def refused(capsys: pytest.CaptureFixture[str], file: Path) -> tuple[int, str]:
    code = main(["package", str(file)])
    [line] = capsys.readouterr().err.splitlines()
    return code, line


def test_a_name_that_spark_would_not_unpack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, line = refused(capsys, tmp_path / "env.gz")
    assert (code, "expected a name that ends with .tar.gz" in line) == (2, True)


def test_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, line = refused(capsys, tmp_path / "none" / "env.tar.gz")
    assert code == SetupError.exit_code
    assert "none/env.tar.gz: cannot write it: No such file or directory; expected" in line


def test_a_place_that_is_taken_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_archive, "_OURS", ("dcplake",))
    monkeypatch.setattr(environment_archive, "_add_required", lambda *_: None)
    (tmp_path / "env.tar.gz").mkdir()
    code, line = refused(capsys, tmp_path / "env.tar.gz")
    assert (code, "cannot write it: Is a directory" in line) == (SetupError.exit_code, True)
    assert [each.name for each in tmp_path.iterdir()] == ["env.tar.gz"]


def test_a_package_that_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_pyarrow(name: str) -> Distribution:
        if name == "pyarrow":
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(environment_archive, "distribution", without_pyarrow)
    code, line = refused(capsys, tmp_path / "env.tar.gz")
    assert code == SetupError.exit_code
    assert "The package pyarrow is not installed in " in line
    assert list(tmp_path.iterdir()) == []
