"""Java and the Delta jars: what is accepted, what is refused and in which words. No network."""

import hashlib
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dcp.cli.main import main as dcplake
from dcp.errors import SetupError
from dcp.lake.spark import install_paths, jars, java, runtime
from tests.producer.authority import Authority

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


@dataclass
class Repository:
    """A Maven repository with four small files for the Delta jars."""

    folder: Path
    address: str
    names: list[str]
    asked: list[str]
    logins: set[str | None]

    def path_of(self, name: str) -> Path:
        [path] = self.folder.rglob(name)
        return path


@contextmanager
def serving(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[Repository]:
    asked: list[str] = []
    logins: set[str | None] = set()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)
            logins.add(self.headers["Authorization"])

    handler = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scheme = "http" if tls is None else "https"
        names = [path.name for path in jars.DELTA.checksums()]
        address = f"{scheme}://127.0.0.1:{server.server_port}"
        yield Repository(folder, address, names, asked, logins)
        server.shutdown()


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    publish(monkeypatch, tmp_path / "maven")
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "kept"))
    with serving(tmp_path / "maven") as there:
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", there.address)
        yield there


def publish(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    lines = []
    for path in jars.DELTA.checksums():
        content = f"content of {path.name}".encode()
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {path}\n")
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(content)
    (folder / "delta.sha256").write_text("".join(lines))
    monkeypatch.setattr(jars, "DELTA", replace(jars.DELTA, files=folder / "delta.sha256"))


@pytest.mark.parametrize("wanted", [jars.DELTA, jars.S3], ids=lambda wanted: wanted.title)
def test_each_published_jar_is_named_once_with_its_checksum(wanted: jars.JarSet) -> None:
    checksums = wanted.checksums()
    assert len({path.name for path in checksums}) == len(checksums) == len(set(checksums.values()))
    for path, checksum in checksums.items():
        *_, artifact, version, name = path.parts
        assert name == f"{artifact}-{version}.jar"
        assert re.fullmatch(r"[0-9a-f]{64}", checksum)


def test_a_place_that_takes_no_jar_is_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kept" / repository.names[0]).mkdir(parents=True)
    with pytest.raises(SetupError, match=r"cannot put the Delta jars there: .*Is a directory"):
        jars.delta_jars()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"cannot put the Delta jars there: .*File exists"):
        jars.delta_jars()


def test_wrong_checksum_names_file_found_and_expected_and_leaves_nothing(
    repository: Repository, tmp_path: Path
) -> None:
    last = repository.path_of(repository.names[-1])
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(SetupError) as refused:
        jars.delta_jars()
    found = hashlib.sha256(b"content of delta-kernel-defaults-4.4.0.ja").hexdigest()
    expected = hashlib.sha256(b"content of delta-kernel-defaults-4.4.0.jar").hexdigest()
    assert "/delta-kernel-defaults-4.4.0.jar is not the published file" in str(refused.value)
    assert f"found sha256 {found}, expected {expected}" in str(refused.value)
    assert list((tmp_path / "kept").iterdir()) == []


def test_failed_download_is_one_line_and_leaves_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository.path_of(repository.names[1]).unlink()
    with pytest.raises(SetupError) as refused:
        jars.delta_jars()
    assert f"could not be downloaded from {repository.address}: " in str(refused.value)
    assert f"/{repository.names[1]}: 404 Not Found: " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_server_that_answers_with_a_page_is_told_by_url_status_and_its_first_words(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (
        "<!DOCTYPE html>\n<html><head><title>Blocked</title><style>a {color: red}</style></head>"
        "<body>\n<h1>Ask \x1b[2J the help desk</h1>" + "<p>more" * 1000
    )

    def answer(handler: SimpleHTTPRequestHandler) -> None:
        handler.send_response(403)
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page.encode())

    monkeypatch.setattr(SimpleHTTPRequestHandler, "do_GET", answer)
    with pytest.raises(SetupError) as refused:
        jars.delta_jars()
    told = str(refused.value)
    assert f"/{repository.names[0]}: 403 Forbidden: Blocked Ask" in told
    assert "the help desk more more" in told and told.isprintable()
    assert "<" not in told and "color" not in told and told.count("more") < 20


@pytest.mark.parametrize(
    ("repository_url", "found"),
    [
        ("nowhere", "found no URL, "),
        ("file:///tmp", "found the scheme file, "),
        ("https://h/m2?token=secret", "found the scheme https and a query, "),
    ],
)
def test_a_repository_that_is_no_url_of_http_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repository_url: str, found: str
) -> None:
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "kept"))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", repository_url)
    with pytest.raises(SetupError) as refused:
        jars.delta_jars()
    assert f"DEFAULT_ARTIFACT_REPOSITORY: {found}expected https://" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_repository_gets_user_and_password_and_no_message_has_them(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_login = repository.address.replace("://", "://ann:s%40cret@")
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", with_login)
    jars.delta_jars()
    assert repository.logins == {"Basic YW5uOnNAY3JldA=="}
    repository.path_of(repository.names[0]).unlink()
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "other"))
    with pytest.raises(SetupError, match="could not be downloaded") as refused:
        jars.delta_jars()
    assert "cret" not in str(refused.value) and "ann" not in str(refused.value)


def test_a_folder_of_jars_in_the_home_of_nobody_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCPLAKE_JARS", "~of-nobody-here/jars")
    with pytest.raises(SetupError, match="DCPLAKE_JARS: found '~of-nobody-here/jars', expected a"):
        jars.delta_jars()


def test_authorities_of_this_machine_are_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As companies add one for their proxies."""
    publish(monkeypatch, tmp_path / "maven")
    monkeypatch.setenv("DCPLAKE_JARS", str(tmp_path / "kept"))
    ours, other = (Authority(tmp_path, name) for name in ("ours", "other"))
    files = ours.issue(["127.0.0.1"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.cert_file, files.key_file)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with serving(tmp_path / "maven", tls) as there:
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", there.address)
        monkeypatch.setenv("SSL_CERT_FILE", other.ca_file)
        with pytest.raises(SetupError, match="could not be downloaded"):
            jars.delta_jars()
        monkeypatch.setenv("SSL_CERT_FILE", ours.ca_file)
        assert [path.name for path in jars.delta_jars()] == there.names


@pytest.mark.parametrize("kept", [{}, {"delta-storage-4.4.0.jar": b"something else"}])
def test_first_use_fetches_what_is_missing_or_damaged(
    repository: Repository,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kept: dict[str, bytes],
) -> None:
    """By several processes at once, too; later uses ask for nothing."""
    folder = tmp_path / "kept"
    folder.mkdir()
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    together = threading.Barrier(2)

    def fetch() -> list[Path]:
        together.wait(60)
        return jars.delta_jars()

    with ThreadPoolExecutor(2) as two:
        first, second = (two.submit(fetch) for _ in range(2))
    asked = len(repository.asked)
    assert asked >= len(repository.names)
    assert first.result() == second.result() == jars.delta_jars()
    assert len(repository.asked) == asked
    assert sorted(folder.iterdir()) == sorted(first.result())
    assert [path.name for path in first.result()] == repository.names
    line = f"dcplake: fetching the Delta jars (12 MB, once) into {folder}\n"
    assert capsys.readouterr().err in (line, 2 * line)


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
    def refuse() -> None:
        raise SetupError("Spark needs Java")

    monkeypatch.setattr(runtime, "find_java_home", refuse)
    assert runtime.main() == SetupError.exit_code
    assert capsys.readouterr().err == "dcplake: Spark needs Java\n"
