"""Error messages for a user's mistakes: found, expected, what to do, and the exit code."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from threading import Thread

import pytest
from typer.core import TyperOption
from typer.main import get_command

from dcp.cli.main import COMMANDS, command, main
from dcp.cli.terminal import progress
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.cli.conftest import World
from tests.client.drained import wait_for
from tests.producer.tls import TLS_FILES

USER = ["--user", "tester"]
LOGIN = "found status 0x20 AUTH_ERROR, user or password is wrong (SCRAM), expected a user"
NO_BUCKET = "found status 0x24 EACCESS, no access, expected bucket 'nowhere' to exist, and user"


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and what was said, which is one line."""
    code = main(words)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    return code, error


@contextmanager
def answering(said_there: bytes | None) -> Iterator[str]:
    """Listen as somebody who says this to everyone, and closes; yields where.

    None: resets the connection, as OpenSSL does where it finds no TLS spoken.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            client.recv(5 if said_there is None else 4096)  # what is left unread resets it
            client.sendall(said_there or b"")
            client.close()

        Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["seek", "--seqno", "9"], "found seek, which dcplake does not have: dcplake resync"),
        (
            ["backfill", "--collections=a.b"],
            "found backfill --collections, which dcplake does not have: make a second lake",
        ),
        (["lode"], "dcplake: No such command 'lode'. Did you mean 'load'?; dcplake --help says"),
        (
            ["load", "--sedes=x", "f"],
            "load: No such option: --sedes (Possible options: --seeds, --user); dcplake",
        ),
        (["run", "once"], "Got unexpected extra argument(s) (once); dcplake run --help"),
        (["serve", "--stuck-timeout", "nan"], "--stuck-timeout: found 'nan', expected seconds"),
        (["serve", "--nodes", "100000"], "--nodes: found 100000, expected 1 to 128"),
        (
            ["serve", "--history-retention", "10MB"],
            "write 10485760 for 10 MiB or 10000000 for 10 MB",
        ),
        (["serve", "--memory-quota", "10"], "dcplake does not have: the producer keeps all"),
        (["plan", "--set", "source.seed=a"], "unknown key 'seed' (did you mean 'seeds'?)"),
        (["plan", "--set", "sauce.seeds=a"], "unknown section 'sauce' (did you mean 'source'?)"),
        (["plan", "--set", "round.target_bytes=1.5GiB"], "write 1610612736 for 1.5 GiB"),
        (["load", "--seeds", "a:8091", "FILE"], "found port 8091, where nodes speak HTTP"),
        (["load", "--seeds", "couchbases://a", "FILE"], "couchbases://, which is TLS"),
        (["plan", "--megabytes-per-second", "5"], "found options of a backfill without --backfill"),
        (["plan", "--vbuckets", "x"], "--vbuckets: found 'x', expected numbers of vbuckets"),
        (["cut", "--as-of", "x"], "--as-of: found 'x', expected a time"),
        (["backfill", "--from", "disk"], "--from: found 'disk', expected replicas or settings"),
        (["maintain", "--step", "x"], "--step: found 'x', expected one of"),
        (["sql"], "Missing argument"),
        (["sql", ""], "question: found '', expected a value: give one; dcplake sql --help"),
        (["plan"], "source.username: found none, expected the user to sign in as"),
        (["plan", "--set", "source.seeds=couchbase://a/b"], "found '/b' behind the address"),
        (["plan", "--lake", "FILE"], "lake.root: found a file ("),
        (["plan", "--set", "lake.root="], "options: lake.root: found '' (str), expected a"),
        (
            ["serve", "--bucket-type", "ephemral"],
            "--bucket-type: 'ephemral' is not one of 'couchbase', 'ephemeral'; dcplake",
        ),
        (["load", "--password-env", "EMPTY", "FILE"], "EMPTY: found nothing in it, expected the"),
        (["load", "/dev/null"], "/dev/null: found a pipe or a device, expected a file"),
        (["load", "--collection", "a", "FILE"], "found 'a', expected SCOPE.NAME"),
        (["load", "FOLDER"], "found a folder, expected a file of JSON lines"),
        (["load", *USER, "--seeds", "http://a", "FILE"], "found http://, expected couchbase://"),
    ],
)
def test_what_is_wrong_before_anything_is_asked(
    words: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMPTY", "")
    file = tmp_path / "one.jsonl"
    file.write_text('{"key": "a", "value": 1}\n')
    words = [{"FILE": str(file), "FOLDER": str(tmp_path)}.get(word, word) for word in words]
    code, error = said(words, capsys)
    assert code == 2 and expected in error
    runs = command(words[0]).registered_commands if words[0] in COMMANDS else []
    if any("json" in signature(each.callback).parameters for each in runs if each.callback):
        assert main([*words, "--json"]) == 2
        told = json.loads(capsys.readouterr().err)
        assert told["exit_code"] == 2 and expected in told["message"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_blank_value_of_any_option_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that the shell did not find leaves one."""
    for param in get_command(command(name)).params:
        if not isinstance(param, TyperOption) or param.is_flag:
            continue
        for value in ("", " "):
            code, error = said([name, param.opts[-1], value], capsys)
            told = f"{param.opts[0]}: found {value!r}, expected a value: give one"
            assert code == 2 and error.startswith(f"dcplake {name}: {told}")


def test_what_a_cluster_refuses(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same words of ``plan``, which is a DCP client, and of ``load``, which is a KV client."""
    file = tmp_path / "one.jsonl"
    file.write_text('{"key": "a", "value": 1}\n')
    load = ["load", "--seeds", f"couchbase://{world.seeds}", str(file)]
    plan = ["plan", "--config", str(world.config)]
    for words, expected in (
        ([*load, "--user", "nobody"], f"{LOGIN} of the cluster, with its password: check the name"),
        ([*plan, "--set", "source.username=nobody"], f"SASL_STEP: {LOGIN}"),
        ([*load, *USER, "--bucket", "nowhere"], NO_BUCKET),
        ([*plan, "--set", "source.bucket=nowhere"], f"SELECT_BUCKET: {NO_BUCKET}"),
        ([*load, *USER, "--collection", "a.b"], "'a.b': found status 0x8c UNKNOWN_SCOPE, there is"),
    ):
        code, error = said(words, capsys)
        assert code == 4 and expected in error, error
    assert main([*load, *USER]) == 0
    assert "1 documents stored in bucket 'default', " in capsys.readouterr().out

    world.config.with_name("password").write_text("\n")
    code, error = said(plan, capsys)
    assert code == 2 and "source.password_file: the first line of the file is empty" in error
    monkeypatch.setenv("DCPLAKE_PASSWORD", "")
    code, error = said([*plan, "--set", "source.password_file="], capsys)
    assert code == 2 and "the environment variable DCPLAKE_PASSWORD is empty" in error


@pytest.mark.parametrize(
    ("spoken", "expected"),
    [
        (None, "reset by peer, expected the port of the data service: 11210, or 11207 with TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "found HTTP on this port, expected the port of the"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "found TLS on this port, but the connection is not"),
        (b"", "closed the connection, expected the port of the data service: 11210, or 11207"),
    ],
)
def test_a_port_where_something_else_is_spoken(
    spoken: bytes | None,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", "secret")
    file = tmp_path / "one.jsonl"
    file.write_text('{"key": "a", "value": 1}\n')
    for words in (
        ["load", str(file), "--seeds"],
        ["plan", "--set", "source.username=tester", "--set"],
        ["doctor", "--set", "source.username=tester", "--set"],
    ):
        with answering(spoken) as seed:
            where = seed if words[0] == "load" else f"source.seeds={seed}"
            code, error = said([*words, where], capsys)
        assert code == 4 and seed in error and expected in error, error


def test_tls_where_there_is_none_and_the_reverse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", "secret")
    with ProducerCluster(ClusterSettings(vbuckets=2, tls=TLS_FILES)) as cluster:
        plan = ["plan", "--set", "source.username=tester", "--set"]
        tls = ["--set", "source.tls=true"]
        plain_port, tls_port = cluster.seeds[0], cluster.tls_seeds[0]
        for words, expected in (
            ([f"source.seeds={plain_port}", *tls], "11207 with TLS (source.tls = true"),
            ([f"source.seeds={tls_port}"], "11207 with TLS (source.tls = true"),
            (
                [f"source.seeds={tls_port}", *tls],
                "name the PEM file of the cluster's own (source.tls_ca_file",
            ),
        ):
            code, error = said([*plan, *words], capsys)
            assert code == 4 and expected in error, error


def test_a_port_in_use_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    port = world.cluster.seeds[1].rpartition(":")[2]
    code, error = said(["serve", "--port", port], capsys)
    assert code == 3
    assert f"cannot listen: port {port} of 127.0.0.1 (--port): Address already in use; end" in error


def test_progress_is_told_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_TELL_SECONDS", 0.01)
    told = ""

    def tells() -> bool:
        nonlocal told
        told += capsys.readouterr().out
        return "loading: 10 of 30 documents, " in told

    with progress.progress("loading", 30, "documents") as advance:
        advance(10)
        wait_for("a line", tells)
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"loading: 10 documents, [\d,]+ a second", last)
