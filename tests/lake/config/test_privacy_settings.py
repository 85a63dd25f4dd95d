"""The section ``privacy``: targets, whose rules hold, and the key of hashes."""

from pathlib import Path

import pytest

from dcp.errors import ConfigError, SecretError
from dcp.lake.config.json_paths import FieldName, Wildcard
from dcp.lake.config.privacy_settings import PrivacyRule, PrivacySettings, PrivateAction
from dcp.lake.config.settings_load import load_settings

KEY = "a key of hashes, long enough"

TARGETS = [
    ("users:$.email", PrivacyRule("users", PrivateAction.DROP, document=(FieldName("email"),))),
    ("*:$", PrivacyRule("*", PrivateAction.DROP, document=())),
    (
        "a.b:$.lines[*]['a name']",
        PrivacyRule(
            "a.b",
            PrivateAction.DROP,
            document=(FieldName("lines"), Wildcard.ELEMENTS, FieldName("a name")),
        ),
    ),
    ("users:xattrs", PrivacyRule("users", PrivateAction.DROP, xattrs=())),
    ("users:xattrs.who", PrivacyRule("users", PrivateAction.DROP, xattrs=(FieldName("who"),))),
    ("users:/^secret:/", PrivacyRule("users", PrivateAction.DROP, keys="^secret:")),
    ("users:/a/b:c/", PrivacyRule("users", PrivateAction.DROP, keys="a/b:c")),
]


@pytest.mark.parametrize(("target", "rule"), TARGETS)
def test_targets(target: str, rule: PrivacyRule) -> None:
    assert list(PrivacySettings(rules={target: "drop"}).parsed()) == [rule]


WRONG = [
    ({"$.email": "drop"}, r"rules: found '\$\.email', expected scope or scope\.collection"),
    ({"users": "drop"}, r"rules: found 'users', expected a collection, scope or \*"),
    ({"users:email": "drop"}, r"rules: found 'users:email', expected a collection"),
    ({"users:$..email": "drop"}, r"rules: found 'users:\$\.\.email', expected"),
    ({"users:xattrsx": "drop"}, r"rules: found 'users:xattrsx', expected"),
    ({"users://": "drop"}, r"rules: found 'users://', expected"),
    ({"users:/(/": "drop"}, r"rules: found '\(', expected a regular expression"),
    ({"users:$.email": "hide"}, r"rules: users:\$\.email: found 'hide', expected one of drop"),
    ({"users:$.a": "mask", "users:$['a']": "drop"}, r"rules: found 'users:\$\.a' and .*one of"),
    ({"users:$.a\udcff": "drop"}, r"rules: found .* expected a target of printable"),
    ({"users:$.email": 1}, r"rules: found .*, expected a table of texts"),
]


@pytest.mark.parametrize(("rules", "message"), WRONG)
def test_what_is_no_rule_is_refused(rules: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrivacySettings(rules=rules)


def test_of_rules_for_one_target_that_of_the_narrowest_name_holds() -> None:
    rules = PrivacySettings(
        rules={
            "a.b:$.email": "hash",
            "*:$.email": "drop",
            "a:$.email": "mask",
            "a:xattrs.email": "mask",
            "c:$.email": "mask",
        }
    )
    found = {rule.target: rule.action for rule in rules.rules_of(("a", "a.b"))}
    assert found == {
        ((FieldName("email"),), None, None): "hash",
        (None, (FieldName("email"),), None): "mask",
    }
    assert [rule.action for rule in rules.rules_of(("a", "a.other"))] == ["mask", "mask"]
    assert [rule.action for rule in rules.rules_of(("other", "other.b"))] == ["drop"]
    assert rules.names == {"a", "a.b", "c"}


def test_rules_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(
        '[privacy]\nhash_key_file = "key"\n\n'
        '[privacy.rules]\n"users:$.email" = "hash"\n"*:/^_/" = "drop"\n'
    )
    settings = load_settings(path, {"DCPLAKE_HASH_KEY": KEY}).privacy
    assert settings.rules == {"users:$.email": "hash", "*:/^_/": "drop"}
    assert settings.hash_key_file == str(tmp_path / "key")
    environment = {"DCPLAKE_PRIVACY_RULES": "users:$.email=hash, *:$.phone=drop"}
    rules = load_settings(None, environment).privacy.rules
    assert rules == {"users:$.email": "hash", "*:$.phone": "drop"}


def test_the_key_comes_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    rules = {"users:$.email": "hash"}
    settings = PrivacySettings(rules=rules)
    assert settings.hash_key({"DCPLAKE_HASH_KEY": KEY}) == KEY.encode()
    for environment in ({}, {"DCPLAKE_HASH_KEY": "short"}):
        with pytest.raises(SecretError, match=r"hash_key_env: found a key of . characters"):
            settings.hash_key(environment)
    file = tmp_path / "key"
    settings = PrivacySettings(rules=rules, hash_key_file=str(file))
    with pytest.raises(SecretError, match=r"privacy\.hash_key_file: cannot read"):
        settings.hash_key({})
    file.write_text(f"{KEY}\nanother line")
    assert settings.hash_key({}) == KEY.encode()
    assert KEY not in repr(settings)
