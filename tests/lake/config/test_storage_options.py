"""Options of an object store, by the names of delta-rs and Polars, and Spark's settings of them."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import ConfigError, SecretError
from dcp.lake.adapters import opening
from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings
from dcp.lake.config.settings_load import load_settings
from dcp.lake.config.storage_options import (
    LOG_STORE,
    checked_options,
    options_of_delta_rs,
    s3a_settings,
    with_secrets,
)
from dcp.lake.config.store_options import PATIENCE, checked_cloud_options, cloud_way

ROOT = "s3://bucket/lake"
SECRET = "secret/of+a/key"
S3A = "spark.hadoop.fs.s3a."
NO_PROFILE = {"HOME": "/nowhere"}


def derived(options: dict[str, str], **environment: str) -> dict[str, str]:
    """Return what is said of the connector, without what it always is."""
    found = s3a_settings(ROOT, options, NO_PROFILE | environment)
    always = s3a_settings(ROOT, {}, NO_PROFILE)
    return {key.removeprefix(S3A): found[key] for key in found.keys() - always.keys()}


@pytest.mark.parametrize(
    ("options", "environment", "settings"),
    [
        ({}, {}, {}),
        ({"aws_region": "eu-west-1"}, {}, {"endpoint.region": "eu-west-1"}),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-2"}, {"endpoint.region": "eu-west-2"}),
        (
            {"AWS_REGION": "eu-west-1"},
            {"AWS_REGION": "eu-west-2"},
            {"endpoint.region": "eu-west-1"},
        ),
        (
            {"AWS_ENDPOINT_URL": "http://h:9000", "aws_allow_http": "true"},
            {},
            {
                "endpoint": "http://h:9000",
                "path.style.access": "true",
                "endpoint.region": "us-east-1",
            },
        ),
        (
            {"region": "x"},
            {"AWS_ENDPOINT_URL": "http://h:9000"},
            {"endpoint": "http://h:9000", "path.style.access": "true", "endpoint.region": "x"},
        ),
        (
            {"endpoint": "https://bucket.h", "aws_virtual_hosted_style_request": "TRUE"},
            {},
            {
                "endpoint": "https://h",
                "path.style.access": "false",
                "endpoint.region": "us-east-1",
            },
        ),
    ],
)
def test_names_of_delta_rs_become_settings_of_the_connector(
    options: dict[str, str], environment: dict[str, str], settings: dict[str, str]
) -> None:
    assert derived(options, **environment) == settings


def test_each_scheme_has_the_connector_and_its_own_keys_go_first() -> None:
    settings = s3a_settings(ROOT, {}, NO_PROFILE)
    for scheme in ("s3", "s3n"):
        assert settings[f"spark.hadoop.fs.{scheme}.impl"].endswith(".S3AFileSystem")
    *keys, last = settings[f"{S3A}aws.credentials.provider"].split(",")
    assert [key.rpartition(".")[2] for key in keys] == [
        "TemporaryAWSCredentialsProvider",
        "SimpleAWSCredentialsProvider",
    ]
    assert last == "dcplake.Credentials"


def read_without_spark(
    options: dict[str, str], spark: dict[str, str], **environment: str
) -> dict[str, str] | None:
    way = options_of_delta_rs(ROOT, options, spark, environment)
    if way is None:
        return None
    assert SECRET not in pickle.dumps(way).decode("latin-1"), "it travels to tasks"
    found = with_secrets(ROOT, way, environment)
    known = ("region", "endpoint", "allow_http", *KEYS)
    return {name: found[name] for name in known if name in found}


KEYS = {"access_key_id": "k", "secret_access_key": SECRET}
AROUND = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": SECRET}
HTTP = {"endpoint": "http://h:9000", "allow_http": "true", "region": "us-east-1"}


@pytest.mark.parametrize(
    ("options", "spark", "environment", "found"),
    [
        ({"region": "x"}, {}, AROUND, {"region": "x", **KEYS}),
        ({}, {}, AROUND | {"AWS_ENDPOINT_URL": "http://h:9000"}, HTTP | KEYS),
        (
            {"endpoint": "https://h", "virtual_hosted_style_request": "true"},
            {},
            AROUND,
            {"endpoint": "https://bucket.h", "region": "us-east-1", **KEYS},
        ),
        ({}, {"spark.hadoop.fs.s3a.retry.limit": "2"}, {}, {"region": "us-east-1"}),
        ({}, {"spark.hadoop.fs.s3a.endpoint": "h"}, AROUND, None),
        ({}, {"spark.hadoop.fs.s3a.bucket.b.access.key": "k"}, AROUND, None),
        ({}, {"spark.hadoop.fs.s3a.aws.credentials.provider": "P"}, AROUND, None),
        ({}, {"spark.delta.logStore.s3.impl": "theirs.LogStore"}, AROUND, None),
        ({}, {"spark.delta.logStore.class": "theirs.LogStore"}, AROUND, None),
        ({}, {"spark.delta.logStore.s3a.impl": "theirs"}, AROUND, {"region": "us-east-1", **KEYS}),
        ({}, {"spark.delta.logStore.s3.impl": LOG_STORE}, AROUND, {"region": "us-east-1", **KEYS}),
    ],
)
def test_delta_rs_gets_the_same_way_unless_only_spark_knows_it(
    options: dict[str, str],
    spark: dict[str, str],
    environment: dict[str, str],
    found: dict[str, str] | None,
    tmp_path: Path,
) -> None:
    assert read_without_spark(options, spark, HOME=str(tmp_path), **environment) == found


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, {"access_key_id": "of default", "secret_access_key": SECRET, "region": "us-east-1"}),
        ({"AWS_PROFILE": "other"}, {**KEYS, "region": "eu-west-3"}),
        ({"AWS_PROFILE": "role"}, None),
        ({"AWS_PROFILE": "none"}, None),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, {"region": "us-east-1"}),
    ],
)
def test_delta_rs_gets_the_keys_of_a_profile(
    tmp_path: Path, environment: dict[str, str], found: dict[str, str] | None
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[profile other]\nregion = eu-west-3\n[profile role]\nrole_arn = arn:aws:iam::1:role/r\n"
    )
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = of default\naws_secret_access_key = {SECRET}\n"
        f"[other]\naws_access_key_id = k\naws_secret_access_key = {SECRET}\n"
    )
    assert read_without_spark({}, {}, HOME=str(tmp_path), **environment) == found


@pytest.mark.parametrize(
    ("options", "environment", "region"),
    [
        ({}, {}, "eu-west-3"),
        ({}, AROUND, "eu-west-3"),
        ({"endpoint": "https://h"}, AROUND, "eu-west-3"),
        ({}, AROUND | {"AWS_PROFILE": "other"}, "eu-west-1"),
        ({}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, "eu-west-3"),
        ({}, {"AWS_REGION": "eu-west-2"}, "eu-west-2"),
        ({"region": "eu-west-4"}, AROUND | {"AWS_REGION": "eu-west-2"}, "eu-west-4"),
    ],
)
def test_the_region_is_the_profiles_wherever_the_keys_are(
    tmp_path: Path, options: dict[str, str], environment: dict[str, str], region: str
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-west-3\n[profile other]\nregion = eu-west-1\n"
    )
    around = environment | {"HOME": str(tmp_path)}
    found = read_without_spark(options, {}, **around)
    assert found is not None and found["region"] == region
    assert derived(options, **around)["endpoint.region"] == region


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            f"[default]\naws_secret_access_key = a\naws_secret_access_key = {SECRET}\n",
            "found aws_secret_access_key twice in [default] (line 3)",
        ),
        ("[default]\n[other]\n[default]\n", "found [default] twice (line 3)"),
        (f"[default]\n{SECRET}\n", "found no setting in line 2"),
        (f"{SECRET}\n[default]\n", "found no section above line 1"),
        ("[default]\nregion = \xff\n", "found bytes that are no UTF-8"),
    ],
)
@pytest.mark.parametrize("name", ["config", "credentials"])
def test_a_damaged_file_of_profiles_is_named_and_no_line_is_told(
    tmp_path: Path, name: str, content: str, fault: str
) -> None:
    file = tmp_path / ".aws" / name
    file.parent.mkdir()
    file.write_bytes(content.encode("latin-1"))
    around = {"HOME": str(tmp_path)}
    for ask in (
        partial(options_of_delta_rs, ROOT, {}, {}),
        partial(s3a_settings, ROOT, {}),
        partial(with_secrets, ROOT, {}),
    ):
        with pytest.raises(SecretError) as refused:
            ask(around)
        assert str(refused.value).startswith(f"{file}: {fault}, expected lines")
        assert SECRET not in str(refused.value)


def test_a_damaged_file_of_profiles_that_nothing_asks_for_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\nsecret\n")
    around = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_REGION": "eu-west-2", **AROUND}
    found = read_without_spark({}, {}, HOME=str(tmp_path), **around)
    assert found == {"region": "eu-west-2", **KEYS}


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\nmore\n")
    options = {"access_key_id": "k", "secret_access_key_file": str(file)}
    assert derived(options) == {
        "dcplake.access_key_id": "k",
        "dcplake.secret_access_key_file": str(file),
    }, "Spark's settings have no secret"
    around = {"AWS_ACCESS_KEY_ID": "other", "HOME": str(tmp_path)}
    assert read_without_spark(options, {}, **around) == {**KEYS, "region": "us-east-1"}
    for path, found in ((tmp_path / "none", "No such file"), (file, "is empty")):
        file.write_text("\n")
        with pytest.raises(
            SecretError, match=rf"^lake\.storage_options\.secret_access_key_file: .*{found}"
        ):
            derived(options | {"secret_access_key_file": str(path)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acess_key_id": SECRET}, "found 'acess_key_id' (did you mean 'access_key_id'?)"),
        ({"region": "a", "AWS_REGION": "b"}, "found region twice"),
        ({"access_key_id": SECRET}, "found one of access_key_id and secret_access_key"),
        (
            {"access_key_id": SECRET, "access_key_id_file": "/f"},
            "found access_key_id_file twice",
        ),
        (
            {"aws_secret_access_key": SECRET, "access_key_id": "k"},
            "found secret_access_key, expected secret_access_key_file, the absolute path of a file "
            "that holds it, or AWS_SECRET_ACCESS_KEY in the environment of the driver and of exec",
        ),
        ({"token": SECRET}, "found session_token, expected session_token_file"),
        ({"session_token_file": SECRET}, "found session_token_file relative"),
        ({"allow_http": SECRET}, "found allow_http neither"),
        ({"endpoint": "h:9000"}, "found an endpoint that is no URL"),
        ({"endpoint": "http://h"}, "found the endpoint h with http"),
        ({"access_key_id": ""}, "found access_key_id empty"),
        ({"timeout": "0s"}, "found timeout '0s', expected a number of seconds"),
        *(
            (
                {"endpoint": f"https://{host}:9", "virtual_hosted_style_request": "True"},
                f"found the endpoint {name} with virtual_hosted_style_request, expected the name",
            )
            for host, name in (
                ("10.0.0.1", "10.0.0.1"),
                ("bucket.10.0.0.1", "bucket.10.0.0.1"),
                ("[::1]", "::1"),
            )
        ),
        ({"endpoint": f"https://h/?k={SECRET}"}, "found the endpoint h with '?' or '#'"),
        ({"endpoint": f"https://h/#{SECRET}"}, "found the endpoint h with '?' or '#'"),
        ({"endpoint": f"https://u:{SECRET[:6]}@h"}, "found the endpoint h with a user or a pass"),
    ],
)
def test_a_wrong_option_is_named_and_no_value_is_told(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_options(options)
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        (f"http://user:{SECRET[:6]}@h:9000", "found the endpoint h with a user or a password"),
        (f"http://{SECRET[:6]}@h:9000", "found the endpoint h with a user or a password"),
        ("h:9000", "found an endpoint that is no URL"),
    ],
)
def test_an_endpoint_of_the_environment_is_refused_as_one_of_the_options_is(
    variable: str, endpoint: str, message: str
) -> None:
    around = {variable: endpoint}
    for ask in (partial(options_of_delta_rs, ROOT, {}, {}), partial(s3a_settings, ROOT, {})):
        with pytest.raises(ConfigError) as refused:
            ask(around)
        assert message in str(refused.value) and "AWS_ENDPOINT_URL" in str(refused.value)
        assert SECRET[:6] not in str(refused.value)


def test_options_are_for_lakes_on_s3_and_stay_unseen() -> None:
    secrets = f"access_key_id={SECRET},secret_access_key_file=/f"
    environment = {"DCPLAKE_LAKE_STORAGE_OPTIONS": secrets, "DCPLAKE_LAKE_ROOT": ROOT}
    lake = load_settings(None, environment).lake
    assert lake.storage_options["access_key_id"] == SECRET
    assert SECRET not in repr(lake)
    assert lake.on_s3 and not LakeSettings(root="gs://bucket/lake").on_s3
    assert LakeSettings(schema="c.s", storage_options={"region": "x"}).on_s3
    assert not LakeSettings(schema="c.s").on_s3
    with pytest.raises(ConfigError, match=r"root is 'lake', expected s3://bucket/path"):
        LakeSettings(root="lake", storage_options={"region": "x"})


@pytest.mark.parametrize(
    ("root", "given", "spark", "environment", "is_told"),
    [
        ("gs://b/lake", {}, "", {}, False),
        ("gs://b/lake", {}, "", {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}, True),
        ("gs://b/lake", {}, "", {"GOOGLE_SERVICE_ACCOUNT": ""}, False),
        ("gs://b/lake", {}, "", {"GOOGLE_CLOUD_PROJECT": "p"}, False),
        ("gs://b/lake", {}, "", {"AZURE_STORAGE_ACCOUNT_KEY": "k"}, False),
        ("gs://b/lake", {}, "fs.gs.auth.type", {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}, False),
        ("gs://b/lake", {}, "fs.gs.impl", {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}, True),
        ("gs://b/lake", {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}, "fs.gs.auth.type", {}, True),
        ("az://c/lake", {}, "", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, True),
        ("az://c/lake", {}, "", {"AZURE_CLIENT_ID": "a", "AZURE_CLIENT_SECRET": SECRET}, True),
        ("az://c/lake", {}, "", {"AZURE_HTTP_USER_AGENT": "cli"}, False),
        ("az://c/lake", {}, "", {"AZURE_STORAGE_ACCOUNT_KEY_FILE": "/f"}, False),
        ("az://c/lake", {}, "fs.azure.account.key.a", {"AZURE_CLIENT_ID": "a"}, False),
        ("abfss://c@a.dfs.core.windows.net/lake", {"timeout": "9s"}, "", {}, True),
    ],
)
def test_lakes_of_google_and_azure_are_read_without_spark_where_the_way_is_told(
    root: str, given: dict[str, str], spark: str, environment: dict[str, str], is_told: bool
) -> None:
    found = cloud_way(root, given, {f"spark.hadoop.{spark}": "x"}, environment)
    if not is_told:
        assert found is None
        return
    assert found == {**PATIENCE, **{name.lower(): value for name, value in given.items()}}
    assert with_secrets(root, found, AROUND) == found, "keys of S3 are of no use there"


def test_a_secret_of_azure_is_in_a_file(tmp_path: Path) -> None:
    root, secret = "az://container/lake", tmp_path / "secret"
    secret.write_text(SECRET)
    file = {"azure_storage_account_key_file": str(secret)}
    assert with_secrets(root, file) == {"azure_storage_account_key": SECRET}
    LakeSettings(root=root, storage_options=file)
    by_another_name = checked_cloud_options(root, {"azure_client_secret_file": str(secret)})
    assert with_secrets(root, by_another_name) == {"azure_storage_client_secret": SECRET}
    for wrong, message in (
        ({"azure_storage_account_key": SECRET}, "expected azure_storage_account_key_file"),
        ({"google_service_account": SECRET}, "found 'google_service_account'"),
        ({"azure_storage_account_key_file": SECRET}, "relative, expected an absolute path"),
        ({"max_retries": "many"}, "found max_retries 'many', expected a number"),
        ({"allow_http": SECRET}, "found allow_http neither"),
        (
            {"azure_storage_client_id": "a", "AZURE_STORAGE_CLIENT_ID": "b"},
            "found azure_storage_client_id twice",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            LakeSettings(root=root, storage_options=wrong)
        assert message in str(refused.value) and SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("root", "options"),
    [
        ("az://container/lake", {"azure_storage_account_name": "a"}),
        ("gs://bucket/lake", {"google_service_account": "/etc/key.json"}),
    ],
)
def test_a_session_for_google_or_azure_has_no_settings_of_s3(
    monkeypatch: pytest.MonkeyPatch, root: str, options: dict[str, str]
) -> None:
    built: dict[str, Any] = {}
    monkeypatch.setattr(opening, "build_session", lambda **given: built.update(given))
    opening.session(Settings(SourceSettings(), lake=LakeSettings(root, storage_options=options)))
    assert not built["on_s3"]
    assert not [name for name in built["extra"] if "s3" in name.lower()]
