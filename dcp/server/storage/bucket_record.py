"""Encodes and decodes ``bucket.json``.

A person's editor or a bad disk may have changed the file, so ``decode`` checks every field.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dcp.errors import ConfigError
from dcp.records import plain
from dcp.server.model.cluster_map import ABSENT
from dcp.server.model.json_checks import (
    Check,
    is_flag,
    is_list_of,
    is_number,
    is_object_of,
    is_optional,
    is_row_of,
    is_text,
)
from dcp.server.model.manifest_table import Row
from dcp.server.storage.disk_log_names import is_disk_log_name
from dcp.wire.json_tree import json_tree

FOLDER_VERSION: Final = 5
_MOST_SHOWN: Final = 60
"""Error messages show at most so many characters of a wrong value."""
_NUMBERS: Final = is_list_of(is_number)
# ``repr`` tells -1 from -1.0.
_NODES: Final = is_list_of(lambda found: is_number(found) or repr(found) == repr(ABSENT))
_ROW: Final = is_object_of(
    {
        "number": is_number,
        "uid": is_number,
        "scopes_gone": _NUMBERS,
        "scopes": is_list_of(is_row_of(is_number, is_text)),
        "collections_gone": _NUMBERS,
        "collections": is_list_of(
            is_row_of(is_number, is_text, is_number, is_optional(is_number), is_number)
        ),
        "given_scope_ids": _NUMBERS,
        "given_collection_ids": _NUMBERS,
    }
)
"""Checks a row of the manifest table."""
_EXPECTED: Final[dict[str, tuple[Check, str]]] = {
    "bucket": (is_text, "a name"),
    "vbuckets": (is_number, "a number"),
    "nodes": (is_number, "a number"),
    "uuid": (is_text, "a text"),
    "first_uuids": (_NUMBERS, "a list of numbers"),
    "map_rev": (is_number, "a number"),
    "owners": (_NUMBERS, "a list of numbers"),
    "members": (is_list_of(is_flag), "a list of true and false"),
    "replicas": (is_list_of(_NODES), "a list of lists of numbers from -1 on"),
    "logs": (is_list_of(is_disk_log_name), "a list of names of disk logs"),
    "replica_logs": (
        is_list_of(is_list_of(is_row_of(is_number, is_disk_log_name))),
        "a list of lists of nodes and names of disk logs",
    ),
    "manifest": (is_number, "a number"),
    "manifests": (is_list_of(_ROW), "a list of manifests"),
    "starts": (is_number, "a number"),
    "ended_at": (is_optional(_NUMBERS), "null or a list of numbers"),
}
"""For each field: its check, and the words for the error message."""


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """The data that all vbuckets of a bucket share."""

    bucket: str
    vbuckets: int
    nodes: int
    uuid: str
    first_uuids: Sequence[int]
    """By vbucket: the branch uuid to start with, if the vbucket has no log file."""
    map_rev: int
    owners: Sequence[int]
    """By vbucket: the node that has it active."""
    members: Sequence[bool]
    """By node: True if the node is part of the cluster."""
    replicas: Sequence[Sequence[int]]
    """By vbucket: the nodes of its replicas, as the vbucket map names them."""
    logs: Sequence[str]
    """By vbucket: the name of its log file."""
    replica_logs: Sequence[Sequence[tuple[int, str]]]
    """By vbucket: node and log file of each replica."""
    manifest: int
    """The number of the bucket's current manifest among ``manifests``."""
    manifests: Sequence[Row]
    starts: int = 0
    """The number of processes that have served the bucket."""
    ended_at: Sequence[int] | None = None
    """By vbucket: the high seqno at a clean stop; None while a process runs or after a crash."""

    def encode(self) -> bytes:
        return json.dumps({"version": FOLDER_VERSION, **plain(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "BucketRecord":
        """Return the record that ``encode`` wrote.

        Raises ConfigError, with the wrong field and its value, if another version of dcplake wrote
        the data or it is damaged.
        """
        try:
            tree = json_tree(data)
        except ValueError as error:
            raise ConfigError(f"found no JSON ({error}), expected an object") from None
        if not isinstance(tree, dict):
            raise ConfigError(f"found {_shown(tree)}, expected a JSON object")
        # Checked first: another version may have other fields.
        version = tree.pop("version", None)
        if version != FOLDER_VERSION:
            raise ConfigError(f"format version: found {version!r}, expected {FOLDER_VERSION!r}")
        if tree.keys() != _EXPECTED.keys():
            raise ConfigError(f"fields: found {sorted(tree)}, expected {sorted(_EXPECTED)}")
        for name, (is_right, expected) in _EXPECTED.items():
            if not is_right(tree[name]):
                raise ConfigError(f"{name}: found {_shown(tree[name])}, expected {expected}")
        record = cls(**tree)
        record._check_lengths()
        return record

    def _check_lengths(self) -> None:
        for name, column in (
            ("first_uuids", self.first_uuids),
            ("owners", self.owners),
            ("replicas", self.replicas),
            ("logs", self.logs),
            ("replica_logs", self.replica_logs),
            ("ended_at", self.ended_at),
        ):
            if column is not None and len(column) != self.vbuckets:
                raise ConfigError(f"{name}: found {len(column)}, expected {self.vbuckets}")
        names = [*self.logs, *(name for row in self.replica_logs for _, name in row)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"logs: found {twice[0]} twice, expected each once")
        rows = [("owners", self.owners), *(("replicas", row) for row in self.replicas)]
        for name, row in rows:
            if row and max(row) >= len(self.members):
                raise ConfigError(
                    f"{name}: found node {max(row)}, expected less than {len(self.members)}"
                )
        numbers = [0, *(row["number"] for row in self.manifests)]
        if any(number <= before for before, number in pairwise(numbers)):
            raise ConfigError(
                f"manifests: found numbers {_shown(numbers[1:])}, expected some that ascend from 1"
            )
        if self.manifest not in numbers:
            raise ConfigError(
                f"manifest: found number {self.manifest}, expected one of {_shown(numbers)}"
            )


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
