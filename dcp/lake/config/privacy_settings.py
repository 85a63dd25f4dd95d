"""Defines the section ``privacy``: the values of documents that a lake never has.

A changed rule holds from its first round on; `dcplake resync` brings older rows under it.
docs/howto/privacy.md explains targets and actions.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError, SecretError
from dcp.lake.config.filter_settings import check_expression, require_names
from dcp.lake.config.json_paths import Step, json_path
from dcp.lake.config.secret_files import read_secret
from dcp.setting_keys import Section, key

EVERY_COLLECTION: Final = "*"
LEAST_KEY_CHARACTERS: Final = 16
_XATTRS: Final = "xattrs"


class PrivateAction(StrEnum):
    """The treatment of a value before anything of it is written."""

    DROP = "drop"
    """The value goes, with the name of its field."""
    MASK = "mask"
    """A constant of the same JSON type replaces it."""
    HASH = "hash"
    """A keyed hash of it replaces it: equal values have equal hashes."""


class Unparsable(StrEnum):
    """The treatment of a value with a rule that is no JSON."""

    DROP = "drop"
    KEEP = "keep"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class PrivacyRule:
    """One rule: target and action. Exactly one of the three targets is not None."""

    collection: str
    """A scope, scope.collection, or ``*``."""
    action: PrivateAction
    document: tuple[Step, ...] | None = None
    """The path of a value in the document; empty: the whole document."""
    xattrs: tuple[Step, ...] | None = None
    """The path of a value in the xattrs; empty: all of them."""
    keys: str | None = None
    """A regular expression (RE2): matching keys' whole documents, with their xattrs."""

    @property
    def target(self) -> tuple[object, ...]:
        """Return the part that the rule names, without the collection."""
        return self.document, self.xattrs, self.keys


@dataclass(frozen=True, slots=True)
class PrivacySettings(Section):
    """Values that the tasks drop, mask or hash before they write (docs/howto/privacy.md)."""

    rules: Mapping[str, str] = key(
        {},
        'By target one of drop, mask, hash, as "users:$.email" = "hash" (docs/howto/privacy.md). '
        "A target is a collection, scope or *, then a colon and a part. The part is $.path (in "
        "the document), xattrs.path (in the xattrs) or /REGEX/ (whole documents, by their key).",
    )
    unparsable: Unparsable = key(
        Unparsable.DROP,
        "What becomes of a value that a rule holds for and that cannot be parsed. drop: the row "
        "stays without the value. keep: it stays as it was sent. fail: the run ends with code 8, "
        "and commits nothing of the round.",
    )
    hash_key_env: str = key(
        "DCPLAKE_HASH_KEY",
        "Name of the environment variable that holds the key of hashes.",
        may_be_secret=True,
    )
    hash_key_file: str = key(
        "",
        "File that holds the key of hashes (its first line); preferred when set. Each round reads "
        "it.",
        may_be_secret=True,
        is_path=True,
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        seen: dict[tuple[object, ...], str] = {}
        for rule, written in zip(self.parsed(), self.rules, strict=True):
            other = seen.setdefault((rule.collection, *rule.target), written)
            if other != written:
                raise ConfigError(f"rules: found {other!r} and {written!r}, expected one of them")

    def parsed(self) -> Iterator[PrivacyRule]:
        """Yield the rules.

        Raises:
            ConfigError: a target or an action cannot be understood.
        """
        for target, action in self.rules.items():
            if action not in tuple(PrivateAction):
                expected = ", ".join(PrivateAction)
                raise ConfigError(f"rules: {target}: found {action!r}, expected one of {expected}")
            yield _rule(target, PrivateAction(action))

    @property
    def names(self) -> frozenset[str]:
        """The scopes and collections that rules name."""
        return frozenset(rule.collection for rule in self.parsed()) - {EVERY_COLLECTION}

    def rules_of(self, names: Sequence[str]) -> tuple[PrivacyRule, ...]:
        """Return the rules for a collection with these names, its scope's and its own.

        Of several rules for one target the one of the narrowest name holds.
        """
        order = (EVERY_COLLECTION, *names)
        found = [rule for rule in self.parsed() if rule.collection in order]
        found.sort(key=lambda rule: order.index(rule.collection))
        return tuple({rule.target: rule for rule in found}.values())

    @property
    def hashes(self) -> bool:
        """True if some rule needs the key."""
        return any(rule.action is PrivateAction.HASH for rule in self.parsed())

    def require_key(self) -> None:
        """Raise ConfigError if a rule hashes, and this process has no key."""
        if self.hashes:
            self.hash_key()

    def hash_key(self, environment: Mapping[str, str] | None = None) -> bytes:
        """Return the key, as file and environment hold it at this moment.

        Raises:
            ConfigError: there is none, or it is too short.
        """
        if self.hash_key_file:
            setting, found = (
                "hash_key_file",
                read_secret(Path(self.hash_key_file), "privacy.hash_key_file"),
            )
        else:
            setting = "hash_key_env"
            found = (os.environ if environment is None else environment).get(self.hash_key_env, "")
        if len(found) < LEAST_KEY_CHARACTERS:
            raise SecretError(
                f"privacy.{setting}: found a key of {len(found)} characters, expected "
                f"{LEAST_KEY_CHARACTERS} or more: rules hash values with it"
            )
        return found.encode("utf-8", "surrogateescape")


def _rule(target: str, action: PrivateAction) -> PrivacyRule:
    if not target.isprintable():
        raise ConfigError(f"rules: found {target!r}, expected a target of printable characters")
    collection, colon, part = target.partition(":")
    if collection != EVERY_COLLECTION:
        require_names("rules", [collection])
    if colon and len(part) > 2 and part[0] == part[-1] == "/":
        check_expression("rules", part[1:-1])
        return PrivacyRule(collection, action, keys=part[1:-1])
    if colon and part.startswith("$") and (steps := json_path(part)) is not None:
        return PrivacyRule(collection, action, document=steps)
    if colon and part.startswith(_XATTRS):
        steps = json_path("$" + part.removeprefix(_XATTRS))
        if steps is not None:
            return PrivacyRule(collection, action, xattrs=steps)
    raise ConfigError(
        f"rules: found {target!r}, expected a collection, scope or *, a colon, and $.path, "
        "xattrs.path or /REGEX/, as users:$.email, *:xattrs.profile.name or users:/^secret:/"
    )
