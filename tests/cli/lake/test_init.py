"""``dcplake init``: a file that the other commands take, from options or from a terminal."""

import os
import pty
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from select import select

import pytest

from dcp.cli.main import main
from dcp.lake.config.settings_load import load_settings
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.manifest_changes import CreateCollection
from tests.client.drained import PATIENCE_SECONDS, fill
from tests.producer.tls import CERTIFICATE, TLS_FILES

PASSWORD = "secret-of-the-test"
END_OF_INPUT = "\x04"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(
        nodes=2, vbuckets=8, bucket="travel", users={"tester": PASSWORD}, tls=TLS_FILES, seed=7
    )
    with ProducerCluster(settings) as running:
        running.change_manifest(CreateCollection("_default", "hotels"))
        fill(running, 120)
        yield running


def seeds_of(cluster: ProducerCluster) -> list[str]:
    return [word for seed in cluster.seeds for word in ("--seed", seed)]


def test_options_alone_make_a_file_of_what_was_told(
    cluster: ProducerCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    file, root = tmp_path / "travel.toml", str(tmp_path / "la ke \U0001f600")
    words = ["init", str(file), *seeds_of(cluster), "--username", "tester", "--root", root]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "bucket 'travel': nodes: 2, vbuckets: 8, collections: 2, documents: 120\n" in said
    assert "the nodes offer TLS" in said
    assert said.endswith(
        f"next:\n  dcplake doctor --config {file}\n  dcplake run --config {file} --once\n"
    )
    text = file.read_text("utf-8")
    keys = re.findall(r"^(\w+) = ", text, re.MULTILINE)
    assert keys == ["seeds", "bucket", "username", "root"], "the only bucket is chosen untold"
    assert "# The bucket to replicate. Value: a non-empty text.\nbucket = " in text
    assert PASSWORD not in text
    settings = load_settings(file, {})
    assert settings.source.seeds == tuple(cluster.seeds)
    assert (settings.source.bucket, settings.lake.root) == ("travel", root)

    assert main(["doctor", "--config", str(file)]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "found a file, expected none" in capsys.readouterr().err
    assert file.read_text("utf-8") == text


def test_what_was_told_is_written_where_it_is_a_default_too_and_paths_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the file, in whatever folder, finds bucket and lake."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "password").write_text(PASSWORD)
    monkeypatch.chdir(tmp_path)
    with ProducerCluster(ClusterSettings(vbuckets=2, users={"tester": PASSWORD})) as running:
        words = [*seeds_of(running), "--username", "tester", "--password-file", "password"]
        root, tasks = ["--root", "lake"], ["--set", "round.tasks=0"]
        assert main(["init", "told.toml", *words, "--bucket", "default", *root, *tasks]) == 0
        assert main(["init", "conf/untold.toml", *words]) == 0
        catalog = ["--set", "lake.schema=main.travel"]
        assert main(["init", "catalog.toml", *words, *catalog]) == 0
    written = {
        name: tomllib.loads(Path(name).read_text("utf-8"))
        for name in ("told.toml", "conf/untold.toml", "catalog.toml")
    }
    source = {
        "seeds": list(running.seeds),
        "bucket": "default",
        "username": "tester",
        "password_file": str(tmp_path / "password"),
    }
    assert written == {
        "told.toml": {
            "source": source,
            "round": {"tasks": 0},
            "lake": {"root": str(tmp_path / "lake")},
        },
        "conf/untold.toml": {"source": source, "lake": {"root": str(tmp_path / "conf" / "lake")}},
        "catalog.toml": {"source": source, "lake": {"schema": "main.travel"}},
    }


def test_what_is_encrypted_and_where_the_password_is(
    cluster: ProducerCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    file = tmp_path / "travel.toml"
    words = ["--seed", cluster.tls_seeds[0], "--username", "tester", "--bucket", "travel"]
    words += ["--password-file", str(password), "--tls-ca-file", CERTIFICATE]
    assert main(["init", str(file), *words]) == 0
    assert "the nodes offer TLS" not in capsys.readouterr().out
    source = load_settings(file, {}).source
    assert (source.tls, source.tls_ca_file) == (True, CERTIFICATE)
    assert (source.password_file, source.password()) == (str(password), PASSWORD)


def test_a_folder_says_who_signs_in(
    cluster: ProducerCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "mounted", tmp_path / "travel.toml"
    folder.mkdir()
    for name, text in (("username", "tester"), ("password", PASSWORD)):
        (folder / name).write_text(text)
    setting = f"source.credentials_folder={folder}"
    assert main(["init", str(file), *seeds_of(cluster), "--set", setting]) == 0
    assert "export" not in capsys.readouterr().out
    source = load_settings(file, {}).source
    assert (source.credentials_folder, source.username) == (str(folder), "")
    assert main(["doctor", "--config", str(file)]) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--username", "tester", "--bucket", "nowhere"], 4, "user has access to: travel"),
        (["--username", "nobody"], 4, "check the name 'nobody'"),
        ([], 2, "source.username: found none"),
        (["--username", "tester", "--password-env", "NONE"], 2, "variable NONE is not set"),
        (["--username", "tester", "--seed", "127.0.0.1:8091"], 2, "found port 8091"),
        (["--username", "tester", "--seed", "127.0.0.1:1"], 4, "127.0.0.1:1: cannot connect"),
        (["FOLDER"], 2, "expected one: make it"),
    ],
)
def test_nothing_is_written_where_something_is_wrong(
    cluster: ProducerCluster,
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)
    file = "nowhere/dcplake.toml" if words == ["FOLDER"] else "dcplake.toml"
    options = [] if "--seed" in words else seeds_of(cluster)
    assert main(["init", file, *options, *[word for word in words if word != "FOLDER"]]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert list(tmp_path.iterdir()) == []


class Terminal:
    """A command at a terminal of its own, and somebody who answers its questions."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._keyboard, screen = pty.openpty()
        self.said = ""
        self._answered = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dcp.cli.main", *words],
            stdin=screen,
            stdout=screen,
            stderr=screen,
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k != "DCPLAKE_PASSWORD"},
            start_new_session=True,
        )
        os.close(screen)

    def answer(self, question: str, text: str, key: str = "\n") -> None:
        """Wait for the question, and type."""
        while question not in self.said[self._answered :]:
            assert self._read(), f"waited for {question!r}: {self.said}"
        self._answered = len(self.said)
        os.write(self._keyboard, (text + key).encode())

    def end(self) -> int:
        """Read to the end; return the exit code."""
        while self._read():
            pass
        os.close(self._keyboard)
        return self._process.wait(PATIENCE_SECONDS)

    def _read(self) -> bool:
        """Read what is said; False where nothing comes, or the command has ended."""
        if not select([self._keyboard], [], [], PATIENCE_SECONDS)[0]:
            return False
        try:
            said = os.read(self._keyboard, 4096)
        except OSError:  # nobody has the other side open any more
            return False
        self.said += said.decode()
        return bool(said)


def test_on_a_terminal_it_asks_for_what_it_was_not_told(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    terminal = Terminal(tmp_path, "init")
    terminal.answer("Nodes of the cluster", ",".join(cluster.seeds))
    terminal.answer("Encrypt connections (TLS) [y/N]", "n")
    terminal.answer("User", "tester")
    # The space is said when nothing is shown any more; what was typed before is thrown away.
    terminal.answer("Password of tester (it is not written): ", PASSWORD)
    terminal.answer("Bucket (travel) [travel]", "treval")
    terminal.answer("found 'treval', expected a bucket", "")
    terminal.answer(f"Folder of the tables, or s3://bucket/path [{tmp_path / 'lake'}]", "tables")
    assert terminal.end() == 0, terminal.said
    assert PASSWORD not in terminal.said
    assert "export DCPLAKE_PASSWORD=…" in terminal.said
    written = (tmp_path / "dcplake.toml").read_text("utf-8")
    assert PASSWORD not in written
    settings = load_settings(tmp_path / "dcplake.toml", {})
    assert (settings.source.bucket, settings.lake.root) == ("travel", str(tmp_path / "tables"))
    assert settings.source.seeds == tuple(cluster.seeds)


def test_on_a_terminal_it_asks_for_the_way_to_an_object_store(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    words = ["--bucket", "travel", "--username", "tester", "--password-file", "password"]
    terminal = Terminal(tmp_path, "init", *seeds_of(cluster), "--no-tls", *words)
    terminal.answer("or s3://bucket/path", "s3://tables/lake")
    terminal.answer("URL of the object store's server", "http://127.0.0.1:9000")
    terminal.answer("Access key", "AKID")
    terminal.answer("File with its secret", "secret")
    assert terminal.end() == 0, terminal.said
    assert "AWS_ACCESS_KEY_ID" not in terminal.said
    lake = load_settings(tmp_path / "dcplake.toml", {}).lake
    assert lake.root == "s3://tables/lake"
    assert lake.storage_options == {
        "endpoint": "http://127.0.0.1:9000",
        "allow_http": "true",
        "access_key_id": "AKID",
        "secret_access_key_file": str(tmp_path / "secret"),
    }


def test_an_object_store_is_told_by_options_and_what_is_missing_is_said(
    cluster: ProducerCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "dcplake.toml"
    words = ["init", str(file), *seeds_of(cluster), "--username", "tester"]
    way = ["--root", "s3://tables/lake", "--set", "lake.storage_options=region=eu-west-1"]
    assert main([*words, *way]) == 0
    assert "export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…" in capsys.readouterr().out
    lake = load_settings(file, {}).lake
    assert (lake.root, lake.storage_options) == ("s3://tables/lake", {"region": "eu-west-1"})


def test_who_ends_the_questions_gets_no_file(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "init")
    terminal.answer("Nodes of the cluster", "", END_OF_INPUT)
    assert terminal.end() == 130, terminal.said
    assert "Traceback" not in terminal.said
    assert list(tmp_path.iterdir()) == []
