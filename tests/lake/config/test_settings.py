"""Settings: where they come from, who wins, and what each kind of mistake is told."""

import inspect
import os
import re
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.lake.config.flow_control_settings import LEAST_WINDOW_BYTES, FlowControlSettings
from dcp.lake.config.privacy_settings import Unparsable
from dcp.lake.config.settings import (
    SECTIONS,
    ApplyWhen,
    DroppedPolicy,
    Settings,
    SourceSettings,
)
from dcp.lake.config.settings_document import document
from dcp.lake.config.settings_load import load_settings
from dcp.lake.receive.source_access import connection_settings
from dcp.protocol.credentials import Credentials
from dcp.protocol.window_policies import WindowPolicy
from dcp.records import default_of
from dcp.setting_keys import shown_settings
from dcp.tls_settings import TlsSettings

CONF = Path(__file__).parents[3] / "conf" / "dcplake.toml"


def load(tmp_path: Path, text: str, **environment: str) -> Settings:
    path = tmp_path / "lake.toml"
    path.write_text(text)
    return load_settings(path, environment)


def test_nothing_given_is_the_defaults() -> None:
    assert load_settings(None, {}) == Settings()


def test_the_documented_file_is_what_the_dataclasses_say() -> None:
    assert CONF.read_text() == document()


def test_the_documented_defaults_load_and_are_the_defaults(tmp_path: Path) -> None:
    text = "".join(
        line.removeprefix("#") + "\n"
        for line in CONF.read_text().splitlines()
        if not line.startswith("# ")
    )
    parsed = tomllib.loads(text)
    assert {name: set(keys) for name, keys in parsed.items()} == {
        name: {key.name for key in shown_settings(section)} for name, section in SECTIONS.items()
    }
    settings = load(tmp_path, text)
    assert settings.lake.root == str(tmp_path / "lake"), "of the file's folder"
    assert replace(settings, lake=replace(settings.lake, root="lake")) == Settings()


PATHS = (
    "source.password_file",
    "source.credentials_folder",
    "source.tls_ca_file",
    "source.tls_cert_file",
    "source.tls_key_file",
    "privacy.hash_key_file",
    "flow_control.stats_folder",
    "lake.root",
    "apply.contracts_folder",
    "quality.gate",
)


def value_of(settings: Settings, name: str) -> str:
    section, _, key = name.partition(".")
    return str(getattr(getattr(settings, section), key))


def test_the_settings_that_are_paths_are_those_that_are_placed() -> None:
    words = re.compile(r"_(file|folder)$|^(root|gate)$")
    named = {
        f"{name}.{each.name}"
        for name, section in SECTIONS.items()
        for each in shown_settings(section)
        if words.search(each.name)
    }
    assert named == set(PATHS)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("x", "{folder}/x"),
        ("../up/x y", "{folder}/../up/x y"),
        ("/away/x", "/away/x"),
        ("~/x", "{home}/x"),
        ("s3a://bucket/x", "s3a://bucket/x"),
        ("file:///away/x", "file:///away/x"),
    ],
)
def test_a_path_of_a_file_is_relative_to_its_folder(
    name: str, written: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cron starts a command in another folder than a person does."""
    away = tmp_path / "away"
    away.mkdir()
    section, _, key = name.partition(".")
    besides = ""
    if key in ("tls_cert_file", "tls_key_file"):
        besides = "tls = true\n"
    if key == "tls_key_file":
        besides += "tls_cert_file = '/cert'\n"
    expected = found.format(folder=tmp_path, home=Path.home())
    (tmp_path / "lake.toml").write_text(f"[{section}]\n{besides}{key} = '{written}'\n")
    for folder, file in ((tmp_path, "lake.toml"), (away, "../lake.toml")):
        monkeypatch.chdir(folder)
        settings = load_settings(Path(file), {})
        assert Path(value_of(settings, name)).resolve() == Path(expected).resolve()
    variable = f"DCPLAKE_{name.replace('.', '_').upper()}"
    for environment, options in (({variable: "x"}, {}), ({}, {name: "x"})):
        settings = load_settings(Path("../lake.toml"), environment, options)
        assert value_of(settings, name) == "x", "relative to the current folder"


def test_a_word_that_is_no_path_stays_as_it_is(tmp_path: Path) -> None:
    assert load(tmp_path, "[quality]\ngate = 'installed'").quality.gate == "installed"
    assert load(tmp_path, "[lake]\nroot = 'installed'").lake.root == str(tmp_path / "installed")
    assert load(tmp_path, "[lake]\nschema = 'main.travel'").lake.schema == "main.travel"


@pytest.mark.parametrize("text", ["", "[lake]\nroot = 'lake'\n", "[lake]\nroot = './lake'\n"])
def test_a_lake_of_the_current_folder_is_told_where_the_file_has_none(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be read anew beside the file, and reports would know of none."""
    here, conf = tmp_path / "here", tmp_path / "conf"
    (here / "lake" / "changes" / "_delta_log").mkdir(parents=True)
    conf.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError) as refused:
        load(conf, text)
    told = str(refused.value)
    assert f"lake.root: found no lake in {conf / 'lake'}, but one in {here / 'lake'};" in told
    assert f"write root = '{here / 'lake'}'" in told
    for option in ("lake", str(tmp_path / "another")):
        named = load_settings(conf / "lake.toml", {}, {"lake.root": option})
        assert named.lake.root == option
    load(conf, "[lake]\nschema = 'main.travel'")
    load(conf, f"[lake]\nroot = '{tmp_path / 'another'}'")
    (conf / "lake" / "changes" / "_delta_log").mkdir(parents=True)
    assert Path(load(conf, text).lake.root) == conf / "lake"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("root = /data/lake", 'root = "…"'),
        ("root = lake", 'root = "…"'),
        ("root = 2024/lake   # of 2024", 'root = "…"'),
        ("root =", 'root = "…"'),
        ("root = lake # \f \u2028", 'root = "…"'),
        ("root = \u201c/data\u201d", 'root = "…"'),
        ('root = "/data', 'root = "…"'),
        ('root = "C:\\data"', "root = '…'"),
        ("seeds = [cb1, cb2]", 'seeds = ["…", "…"]'),
        ("seeds = [10.0.0.1:11210]", 'seeds = ["…", "…"]'),
        ("seeds = [\n  cb1,\n]", '"…"'),
        ("conf = {a = b}", 'conf = {name = "…"}'),
        ("fs.s3a.secret.key = hunter2", 'fs.s3a.secret.key = "…"'),
    ],
)
def test_a_text_without_quotes_is_told_of_them_but_not_shown(
    line: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"[lake]\nlock = true\n{line}")
    told = str(refused.value)
    assert "no valid TOML" in told
    assert told.endswith(hint)
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "text",
    ["[round\n", "tasks = 1\ntasks = 2\n", "[a]\n[a]\n", "a b = 1"],
)
def test_what_lacks_no_quotes_is_told_of_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no valid TOML") as refused:
        load(tmp_path, text)
    assert "stand" not in str(refused.value)


@pytest.mark.parametrize("text", ["a = [\n\u00a0", "a = [\n\v\n", "\u2028\u00a0", "\f"])
def test_white_space_that_toml_does_not_know_is_no_toml(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no valid TOML"):
        load(tmp_path, text)


def test_file_then_environment_then_option(tmp_path: Path) -> None:
    path = tmp_path / "lake.toml"
    path.write_text('[round]\ntasks = 2\ntarget_bytes = 5\n[source]\nseeds = ["a:1", "b:2"]\n')
    settings = load_settings(
        path,
        {"DCPLAKE_ROUND_TASKS": "3", "DCPLAKE_FLOW_CONTROL_ACK_SECONDS": "2", "DCPLAKE_JARS": "x"},
        {"round.tasks": 4, "source.tls": "true", "spark.conf": "a.b=c, d=e"},
    )
    assert settings.round.tasks == 4
    assert settings.round.target_bytes == 5
    assert settings.source.seeds == ("a:1", "b:2")
    assert settings.source.tls is True
    assert settings.flow_control.ack_seconds == 2.0
    assert dict(settings.spark.conf) == {"a.b": "c", "d": "e"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[round]\ntask = 2", ["lake.toml", "round.task", "unknown key", "target_bytes"]),
        (
            "[source]\npassword_env = {}",
            ["password_env", "found a table of texts", "a non-empty text"],
        ),
        (
            "[rounds]\ntasks = 2",
            ["lake.toml", "'rounds'", "source, filter, privacy, flow_control, round"],
        ),
        ('[policy]\ndropped_collections = "keep"', ["dropped_collections", "a table of texts"]),
        ("tasks = 2", ["lake.toml", "'tasks'"]),
        ("source = 3", ["lake.toml", "source: found a value of type int", "section [source]"]),
        ("[apply]\nkey_literals = 1", ["found apply.key_literals, which dcplake does not have"]),
        ('[round]\ntasks = "2"', ["lake.toml", "round.tasks", "'2' (str)", "an integer"]),
        ("[round]\ntasks = true", ["round.tasks", "True (bool)"]),
        ("[round]\ntasks = 1.0", ["round.tasks", "1.0 (float)"]),
        ("[round]\ntasks = -1", ["round.tasks", "-1", "from 0 to 4096"]),
        ("[round]\ntarget_seconds = nan", ["round.target_seconds", "nan", "0.1 or more"]),
        ("[round]\ntarget_seconds = inf", ["round.target_seconds", "inf"]),
        ("[source]\nbucket = 7", ["source.bucket", "7 (int)", "a non-empty text"]),
        ("[source]\nseeds = []", ["source.seeds", "a list of one or more"]),
        ('[source]\nseeds = "a:1"', ["source.seeds", "a list"]),
        ('[source]\npassword = "x"', ["source.password", "unknown key", "password_env"]),
        ("[source]\ntls = 1", ["source.tls", "true or false"]),
        ('[apply]\nwhen = "always"', ["apply.when", "'always'", '"every_round"']),
        ("[spark.conf]\na = 1", ["spark.conf", "a table of texts"]),
        (
            '[policy.dropped_collections]\n"s.c" = "remove"',
            ["policy.dropped_collections", "'remove' for s.c", '"delete", "keep"'],
        ),
        ('[policy.dropped_collections]\n"s.*" = "keep"', ["dropped_collections", "'s.*'", "scope"]),
        ('[policy.dropped_collections]\ns.c = "keep"', ["dropped_collections", "a table of texts"]),
        ("[round\n", ["lake.toml", "no valid TOML"]),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert [word for word in words if word not in str(caught.value)] == []


def test_mistakes_in_the_environment_name_the_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DCPLAKE_ROUND_TASKS.*'many'.*an integer"):
        load(tmp_path, "", DCPLAKE_ROUND_TASKS="many")
    with pytest.raises(ConfigError, match=r"DCPLAKE_ROUND_SPEED.*unknown key 'speed'"):
        load(tmp_path, "", DCPLAKE_ROUND_SPEED="1")
    with pytest.raises(ConfigError, match=r"DCPLAKE_SOURCE_TLS.*'yes'.*true or false"):
        load(tmp_path, "", DCPLAKE_SOURCE_TLS="yes")
    for name, meant in (("POLCY_DROPPED", "policy"), ("FLOW_CONTOL_ACK_SECONDS", "flow_control")):
        with pytest.raises(ConfigError, match=rf"DCPLAKE_{name}: unknown section .*'{meant}'"):
            load(tmp_path, "", **{f"DCPLAKE_{name}": "keep"})


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    names = ("PASSWORD", "JARS", "STOP_AT", "TEST_SEED", "DAG_CONFIG", "DAG_TABLES")
    assert load(tmp_path, "", **{f"DCPLAKE_{name}": "x" for name in names}) == load(tmp_path, "")


def test_a_master_that_is_none_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toml: spark\.master: found 'foo', expected local"):
        load(tmp_path, '[spark]\nmaster = "foo"\n')


def test_a_master_among_sparks_own_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found spark\.master, expected it in the section"):
        load(tmp_path, '[spark.conf]\n"spark.master" = "local[2]"\n')


@pytest.mark.parametrize("by", ["file", "variable", "option"])
def test_a_choice_is_an_enum_wherever_it_is_given(by: str, tmp_path: Path) -> None:
    if by == "file":
        settings = load(tmp_path, '[apply]\nwhen = "never"\n[privacy]\nunparsable = "keep"\n')
    elif by == "variable":
        settings = load(tmp_path, "", DCPLAKE_APPLY_WHEN="never", DCPLAKE_PRIVACY_UNPARSABLE="keep")
    else:
        settings = load_settings(None, {}, {"apply.when": "never", "privacy.unparsable": "keep"})
    assert settings.apply.when is ApplyWhen.NEVER
    assert settings.privacy.unparsable is Unparsable.KEEP
    assert settings.policy.dropped is DroppedPolicy.DELETE


def test_an_empty_value_of_a_setting_that_needs_one_is_told(tmp_path: Path) -> None:
    told = []
    for section, kind in SECTIONS.items():
        for each in shown_settings(kind):
            name, default = f"{section}.{each.name}", default_of(each)
            if each.metadata["may_be_empty"] or default in ("", (), {}):
                continue
            variable = f"DCPLAKE_{name.replace('.', '_').upper()}"
            found = r"found (''|\(\)|a value of type) .*, expected "
            with pytest.raises(ConfigError, match=rf"^environment variable {variable}: {name}: "):
                load(tmp_path, "", **{variable: " "})
            with pytest.raises(ConfigError, match=rf"lake\.toml: {name}: {found}"):
                load(tmp_path, f'[{section}]\n{each.name} = ""')
            told.append(name)
    assert {"source.bucket", "source.seeds", "lake.root", "spark.master"} <= set(told)
    assert load(tmp_path, '[filter]\nexclude_keys = ""').filter.exclude_keys == ""


def test_mistakes_in_options_name_the_option() -> None:
    with pytest.raises(ConfigError, match=r"option round\.speed: unknown key"):
        load_settings(None, {}, {"round.speed": 1})
    with pytest.raises(ConfigError, match=r"option nowhere\.tasks: unknown section"):
        load_settings(None, {}, {"nowhere.tasks": 1})


def test_a_list_that_is_written_as_in_a_file_is_told_the_other_form() -> None:
    found = r"""source\.seeds: found '\["h:1"\]' .*, expected a list .*, here with commas .*: a,b"""
    with pytest.raises(ConfigError, match=found):
        load_settings(None, {}, {"source.seeds": '["h:1"]'})
    one = load_settings(None, {}, {"source.seeds": "[::1]:11210"})
    assert one.source.seeds == ("[::1]:11210",)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot read.*No such file"):
        load_settings(tmp_path / "none.toml", {})


def test_window_batch_and_acknowledgement_must_fit_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lake\.toml.*batch_bytes: found 4096, expected at most"):
        load(tmp_path, "[flow_control]\nwindow_bytes = 4096\nbatch_bytes = 4096")
    with pytest.raises(ConfigError, match=r"DCPLAKE_FLOW_CONTROL_WINDOW_BYTES.*batch_bytes"):
        load(tmp_path, "", DCPLAKE_FLOW_CONTROL_WINDOW_BYTES="1000000")
    assert FlowControlSettings(window_bytes=4096, batch_bytes=2048, ack_fraction=0.5).batch_bytes


@pytest.mark.parametrize("found", [1, 4095, 8193])
def test_a_streams_window_is_none_or_fits_the_connections(tmp_path: Path, found: int) -> None:
    text = f"[flow_control]\nwindow_bytes = 8192\nbatch_bytes = 2048\nstream_window_bytes = {found}"
    expected = f"stream_window_bytes: found {found}, expected 0, or from 4096 to window_bytes"
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path, text)


@given(
    st.integers(4096, 2**32 - 1), st.floats(0.01, 0.9, allow_nan=False), st.integers(1024, 2**30)
)
def test_a_batch_leaves_room_in_a_streams_window(window: int, ack: float, batch: int) -> None:
    """What it may hold of a stream, and what is released and not acknowledged, is less than all."""
    flow = FlowControlSettings(
        window_bytes=2**32 - 1, stream_window_bytes=window, ack_fraction=ack, batch_bytes=1024
    )
    flow = replace(flow, batch_bytes=min(batch, int((2**32 - 1) * (1 - ack))))
    most_held = flow.flush_bytes(window) - 1
    assert 0 < flow.flush_bytes(window) <= flow.batch_bytes
    assert most_held + int(window * ack) < window


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('window_policy = "greedy"', 'window_policy: found .greedy.*"none", "static", "dynamic"'),
        ('window_policy = "Static"', "window_policy: found .Static"),
        ("window_policy = 1", r"window_policy: found 1 \(int\)"),
        ("window_bytes = 4294967296", "window_bytes: found 4294967296 .*to 4294967295"),
        ("window_bytes = -1", "window_bytes: found -1"),
        ("window_most_bytes = 4294967296", "window_most_bytes: found 4294967296"),
        ("window_quota_bytes = -1", "window_quota_bytes: found -1"),
        ("window_percent = -1", "window_percent: found -1"),
        ("window_percent = nan", "window_percent: found nan"),
        ("window_threshold_percent = 101", "window_threshold_percent: found 101"),
        ("window_shared_percent = 0", "window_shared_percent: found 0"),
        ('window_policy = "none"', "window_policy: found 'none'.*set allow_no_flow_control"),
        (
            'window_policy = "dynamic"\nwindow_most_bytes = 9000000',
            r"window_most_bytes: found 9000000, expected at least window_bytes \(10485760\)",
        ),
        (
            'window_policy = "aggressive"\nwindow_bytes = 4096',
            r"batch_bytes: found 4194304, expected at most 3276; .* window_bytes \(4096\)",
        ),
        (
            'window_policy = "ratio"\nwindow_quota_bytes = 10_000_000',
            r"batch_bytes: found 4194304, expected at most 400000; .* window_shared_percent of "
            r"window_quota_bytes \(500000\)",
        ),
        (
            'window_policy = "ratio"\nstream_window_bytes = 60_000_000',
            "stream_window_bytes: found 60000000, expected 0, or from 4096 to the window of one",
        ),
    ],
)
def test_window_policies_that_cannot_work_are_told_what_to_change(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path, f"[flow_control]\n{text}")


def test_numbers_of_other_policies_do_not_matter(tmp_path: Path) -> None:
    text = "[flow_control]\nwindow_bytes = 60_000_000\nwindow_quota_bytes = 1048576"
    assert load(tmp_path, text).flow_control.fixed_window_bytes == 60_000_000
    text = '[flow_control]\nwindow_policy = "none"\nallow_no_flow_control = true'
    flow = load(tmp_path, text).flow_control
    assert flow.fixed_window_bytes == 0
    assert flow.flush_bytes(0) == flow.batch_bytes


@given(
    st.sampled_from(WindowPolicy),
    st.integers(1, 2**32 - 1),
    st.floats(0.01, 0.9, allow_nan=False),
)
def test_a_batch_leaves_room_in_any_window_that_a_policy_gives(
    policy: WindowPolicy, window: int, ack: float
) -> None:
    flow = FlowControlSettings(
        window_policy=policy, ack_fraction=ack, batch_bytes=1024, allow_no_flow_control=True
    )
    window = max(window, LEAST_WINDOW_BYTES)
    assert 0 < flow.flush_bytes(window) <= flow.batch_bytes
    assert flow.flush_bytes(window) - 1 + int(window * ack) < window


def test_the_password_is_read_by_reference(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("from file\nsecond line\n")
    by_file = SourceSettings(username="u", password_file=str(file))
    assert by_file.password({"DCPLAKE_PASSWORD": "from environment"}) == "from file"
    by_variable = SourceSettings(username="u", password_env="MINE")
    assert by_variable.password({"MINE": "from environment"}) == "from environment"
    with pytest.raises(ConfigError, match=r"MINE is not set.*user 'u'"):
        by_variable.password({})
    with pytest.raises(ConfigError, match=r"password_file: cannot read"):
        SourceSettings(password_file=str(tmp_path / "none")).password({})


def test_a_mounted_folder_says_who_signs_in_as_it_is_now(tmp_path: Path) -> None:
    """Kubernetes changes all files at once, by another target of the link ``..data``."""
    source = SourceSettings(credentials_folder=str(tmp_path))
    for user in ("ada", "ben"):
        state = tmp_path / f"..{user}"
        state.mkdir()
        (state / "username").write_text(f"{user}\n")
        (state / "password").write_text(f"secret of {user}\n")
        (tmp_path / "..new").symlink_to(state.name)
        (tmp_path / "..new").rename(tmp_path / "..data")
        for name in ("username", "password"):
            if not (tmp_path / name).is_symlink():
                (tmp_path / name).symlink_to(f"..data/{name}")
        found = source.credentials()
        assert (found.username, found.password.reveal()) == (user, f"secret of {user}")
    (tmp_path / "..ben" / "password").write_text("\n")
    with pytest.raises(ConfigError, match=r"credentials_folder: .* file password is empty"):
        source.credentials()
    (tmp_path / "..ben" / "username").unlink()
    with pytest.raises(ConfigError, match=r"credentials_folder: cannot read .* No such file"):
        source.credentials()


def test_a_folder_need_not_be_of_kubernetes(tmp_path: Path) -> None:
    (tmp_path / "username").write_text("ada")
    (tmp_path / "password").write_text("secret of ada")
    assert SourceSettings(credentials_folder=str(tmp_path)).credentials().username == "ada"


def test_a_certificate_signs_in_where_no_user_is_named(tmp_path: Path) -> None:
    certificate = SourceSettings(seeds=("couchbases://cb",), tls_cert_file="client.pem")
    assert certificate.credentials() == Credentials.of_certificate()
    (tmp_path / "password").write_text("secret")
    both = replace(certificate, username="ada", password_file=str(tmp_path / "password"))
    assert both.credentials().username == "ada"


def test_a_connection_string_is_settings_too() -> None:
    text = "couchbases://cb1,cb2:1?network=external"
    source = load_settings(None, {}, {"source.seeds": text}).source
    assert source == load_settings(None, {"DCPLAKE_SOURCE_SEEDS": text}).source
    connection = connection_settings(source, FlowControlSettings())
    assert connection.network == "external"
    assert connection.tls == TlsSettings()
    assert source.connection_string().addresses == (("cb1", 11207), ("cb2", 1))


def test_plain_is_for_lines_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", "secret")
    for change, is_allowed in (
        ({}, False),
        ({"allow_plain": True}, True),
        ({"tls": True}, True),
        ({"seeds": ("couchbases://cb",)}, True),
    ):
        source = replace(SourceSettings(username="u"), **change)
        assert ("PLAIN" in source.credentials().mechanisms) == is_allowed


_SECRET = "abc/SECRET+xyz"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'[spark.conf]\n"fs.s3a.secret.key" = "{_SECRET}"\na = 1', "found 'a' of type int, exp"),
        (f'[spark.conf]\nfs.s3a.secret.key = "{_SECRET}"', "spark.conf: found 'fs' of type dict"),
        (f'[spark.conf]\n"fs.s3a.secret.key" = ["{_SECRET}"]', "'fs.s3a.secret.key' of type list"),
        (f'[spark]\nconf = "{_SECRET}"', "spark.conf: found a value of type str, expected a table"),
        (f'[source]\npassword = "{_SECRET}"', "unknown key 'password'"),
        (f'[source]\npassword_env = ["{_SECRET}"]', "password_env: found a value of type list"),
        (f'[source]\npassword_file = ["{_SECRET}"]', "password_file: found a value of type list"),
    ],
)
def test_a_mistake_beside_a_secret_shows_keys_and_types(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert told in str(caught.value)
    assert _SECRET not in str(caught.value)
    assert "lake.toml" in str(caught.value)


def test_secrets_of_the_environment_and_of_options_are_not_shown(tmp_path: Path) -> None:
    told = r"DCPLAKE_SPARK_CONF: spark\.conf: found a value of type str, .*name=value with commas"
    with pytest.raises(ConfigError, match=told) as caught:
        load(tmp_path, "", DCPLAKE_SPARK_CONF=f"k=a,{_SECRET}")
    assert _SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match=r"options: spark\.conf: .*a value of type str") as caught:
        load_settings(None, {}, {"spark.conf": _SECRET})
    assert _SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            'credentials_folder = "/s"\nusername = "u"',
            "source.credentials_folder: found username or password_file beside it",
        ),
        (
            'credentials_folder = "/s"\npassword_file = "p"',
            "source.credentials_folder: found username or password_file beside it",
        ),
        ('tls_key_file = "k"\ntls = true', "source.tls_key_file: found no tls_cert_file"),
        (
            'tls_cert_file = "c"',
            "source.tls_cert_file: found no encryption, expected couchbases://",
        ),
        (
            'seeds = ["couchbase://a?x=1"]',
            "source.seeds: node address 'couchbase://a': found option 'x'",
        ),
        ('seeds = ["a:8091", "b"]', "source.seeds: found port 8091, where nodes speak HTTP"),
    ],
)
def test_ways_to_connect_that_contradict_one_another(tmp_path: Path, lines: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"[source]\n{lines}\n")
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["password_env", "password_file"])
def test_a_password_in_place_of_its_name_is_not_shown(name: str) -> None:
    source = replace(SourceSettings(username="u"), **{name: _SECRET})  # type: ignore[arg-type]  # a field by name
    with pytest.raises(ConfigError, match=rf"source\.{name}: .* that it names") as caught:
        source.password({})
    assert _SECRET not in str(caught.value)


def test_reprs_of_settings_have_no_spark_configuration() -> None:
    settings = load_settings(None, {}, {"spark.conf": f"fs.s3a.secret.key={_SECRET}"})
    assert settings.spark.conf["fs.s3a.secret.key"] == _SECRET
    assert _SECRET not in repr(settings) + str(settings)


def test_no_setting_holds_a_password() -> None:
    assert "password" not in asdict(SourceSettings())


def test_no_signature_shows_the_environment() -> None:
    """``help`` and notebooks print default values; the environment has passwords."""
    for module in [each for name, each in sys.modules.items() if name.startswith("dcp.")]:
        for owner in [module, *(each for each in vars(module).values() if isinstance(each, type))]:
            for function in filter(inspect.isfunction, vars(owner).values()):
                defaults = [
                    *(function.__defaults__ or ()),
                    *(function.__kwdefaults__ or {}).values(),
                ]
                assert not any(each is os.environ for each in defaults), function.__qualname__
