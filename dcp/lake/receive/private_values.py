"""Takes private values out of documents, by the rules of the section ``privacy``.

A task does this before it builds batches, so no written file ever has the values. The rules go by a
collection's names. A collection outside the manifest that did not begin in the task's streams gets
the rules of all collections: that hides too much rather than too little.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dcp.errors import QualityError
from dcp.lake.change_log.erase_request import hashes_of, key_hash
from dcp.lake.config.json_paths import FieldName, Step, Wildcard
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.config.privacy_settings import (
    PrivacyRule,
    PrivacySettings,
    PrivateAction,
    Unparsable,
)
from dcp.lake.receive.arrow_columns import Mask, mask_of
from dcp.lake.receive.column_editor import ColumnEditor
from dcp.lake.receive.document_columns import StoredDocuments
from dcp.lake.receive.json_editor import Edit, drop, text_editor
from dcp.lake.receive.keys import key_columns, matching
from dcp.wire.columns import DataColumns
from dcp.wire.vocabulary import Datatype
from dcp.wire.xattr import TRANSACTION_NAME

_JSON: Final = int(Datatype.JSON)
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_HASH_BYTES: Final = 16
_KEY_ID_BYTES: Final = 4
DROPPED: Final = "the value is dropped: [privacy] has rules for it, and it cannot be parsed"


@dataclass(frozen=True, slots=True)
class _TextEdit:
    """The edits of whole texts."""

    edit: Callable[[bytes], bytes | None]
    """Raises ValueError: the text cannot be parsed."""
    columns: ColumnEditor | None = None
    """Makes the same edits in most texts, many at once."""

    @classmethod
    def of(cls, edits: Mapping[tuple[Step, ...], Edit]) -> "_TextEdit":
        if edits.get(()) is drop:  # it needs no parser
            return cls(_drop)
        return cls(text_editor(edits), ColumnEditor.of(edits))


@dataclass(frozen=True, slots=True)
class _CollectionRules:
    document: _TextEdit | None
    xattrs: _TextEdit | None
    below: frozenset[Step]
    """The xattrs inside which there are edits."""
    keys: tuple[tuple[str, _TextEdit], ...]
    """Regular expressions of keys, and the edit for the documents of matching keys.

    The first one that matches covers all others, and edits by paths.
    """


def _drop(_: bytes) -> None:
    return None


def _refuse(_: bytes) -> None:
    raise ValueError


class PrivateValues:
    def __init__(self, settings: PrivacySettings, kept_out: Mapping[str, frozenset[str]]) -> None:
        """Take the rules; read the key of hashes if a rule needs it.

        Args:
            settings: the rules.
            kept_out: see `DocumentFilter.kept_out`.

        Raises:
            ConfigError: there is no key.
        """
        self._settings = settings
        self._kept_out = kept_out
        self._hashes: dict[int, frozenset[str]] = {}
        self._other_hashes = hashes_of(self._kept_out, self._kept_out)
        self._edits: dict[PrivateAction, Edit] = {
            PrivateAction.DROP: drop,
            PrivateAction.MASK: masks,
        }
        if settings.hashes:
            self._edits[PrivateAction.HASH] = hashes_with(settings.hash_key())
        self._names: Mapping[int, Sequence[str]] = {}
        self._rules: dict[int, _CollectionRules | None] = {}
        self._others = self._compiled(tuple(settings.parsed()))

    def learn(self, names: Mapping[int, Sequence[str]]) -> None:
        """Learn the names of collections, by id, before their documents come."""
        if names is self._names:  # each vbucket tells of each collection
            return
        before, self._names = self._names, names
        for collection_id, found in names.items():
            if found != before.get(collection_id):
                self._rules[collection_id] = self._compiled(self._settings.rules_of(found))
                self._hashes[collection_id] = hashes_of(self._kept_out, found)

    def _compiled(self, rules: Sequence[PrivacyRule]) -> _CollectionRules | None:
        document: dict[tuple[Step, ...], Edit] = {}
        xattrs: dict[tuple[Step, ...], Edit] = {}
        keys: list[tuple[str, _TextEdit]] = []
        for rule in rules:
            edit = self._edits[rule.action]
            if rule.keys is not None:
                keys.append((rule.keys, _TextEdit.of({(): edit})))
            elif rule.xattrs is not None:
                xattrs[rule.xattrs] = edit
            elif rule.document is not None:
                document[rule.document] = edit
        if not rules:
            return None
        if document:  # a staged document is a copy
            xattrs.setdefault((FieldName(TRANSACTION_NAME),), drop)
        below = frozenset(steps[0] for steps in xattrs if len(steps) > 1)
        return _CollectionRules(
            _TextEdit.of(document) if document else None,
            _TextEdit.of(xattrs) if xattrs else None,
            below,
            tuple(reversed(keys)),
        )

    def taken_out(self, stored: StoredDocuments) -> StoredDocuments:
        """Return decoded documents without the private values.

        Raises:
            QualityError: a value cannot be parsed, and ``privacy.unparsable`` is fail.
        """
        collection_ids = stored.columns.collection_id
        for collection_id in np.unique(collection_ids).tolist():
            if hashes := self._hashes.get(collection_id, self._other_hashes):
                stored = self._kept(stored, hashes, collection_ids == collection_id)
            rules = self._rules.get(collection_id, self._others)
            if rules is not None:
                stored = self._edited(stored, rules, collection_ids == collection_id)
        return stored

    def _kept(self, stored: StoredDocuments, hashes: frozenset[str], rows: Mask) -> StoredDocuments:
        """Return the documents, those of kept-out keys without values and xattrs."""
        keys = key_columns(stored.columns.key)[0].filter(pa.array(rows)).to_pylist()
        found = np.zeros(len(rows), np.bool_)
        found[rows] = [key_hash(key) in hashes for key in keys]
        if not found.any():
            return stored
        stored = self._with_documents(stored, found, _TextEdit(_drop))
        return replace(stored, xattrs=_nulled(stored.xattrs, found))

    def _edited(
        self, stored: StoredDocuments, rules: _CollectionRules, rows: Mask
    ) -> StoredDocuments:
        if rules.keys:
            keys, as_sent = key_columns(stored.columns.key)
            for expression, edit in rules.keys:
                found = matching(keys, expression) | matching(as_sent, expression)
                stored = self._with_documents(stored, rows & found, edit)
                stored = replace(stored, xattrs=_nulled(stored.xattrs, rows & found))
                rows = rows & ~found
        if rules.document is not None:
            stored = self._with_documents(stored, rows, rules.document)
        if rules.xattrs is not None:
            # Xattrs of a value that could not be decoded are in the value.
            undecoded = rows & (stored.columns.datatype > _JSON)
            stored = self._with_documents(stored, undecoded, _TextEdit(_refuse))
            stored = self._with_xattrs(stored, rows, rules.xattrs, rules.below)
        return stored

    def _with_documents(
        self, stored: StoredDocuments, rows: Mask, edit: _TextEdit
    ) -> StoredDocuments:
        columns = stored.columns
        rows = rows & (pc.binary_length(columns.value).to_numpy() > 0)
        if not rows.any():
            return stored
        value, is_lost = self._values(columns, rows, edit)
        if value.null_count:
            is_gone = mask_of(value.is_null())
            datatype = np.where(is_gone, np.uint8(0), columns.datatype)
            columns = replace(columns, datatype=datatype)
            value = value.fill_null(b"")
        columns = replace(columns, value=value)
        return replace(stored, columns=columns, detail=_told(stored.detail, is_lost))

    def _with_xattrs(
        self, stored: StoredDocuments, rows: Mask, edit: _TextEdit, below: frozenset[Step]
    ) -> StoredDocuments:
        rows = rows & mask_of(stored.xattrs.is_valid())
        if not rows.any():
            return stored

        def checked(text: bytes) -> bytes | None:
            refuse_hidden(text, below)
            return edit.edit(text)

        columns = replace(stored.columns, value=pc.cast(stored.xattrs, pa.binary()))
        xattrs, is_lost = self._values(columns, rows, _TextEdit(checked) if below else edit)
        xattrs = xattrs.cast(pa.string())
        return replace(stored, xattrs=xattrs, detail=_told(stored.detail, is_lost))

    def _values(
        self, columns: DataColumns, rows: Mask, edit: _TextEdit
    ) -> tuple[pa.BinaryArray, Mask]:
        """Return all values after the edits (null: dropped), and the mask of rows dropped
        unparsed.
        """
        value, is_lost = columns.value, np.zeros(len(rows), np.bool_)
        if edit.columns is not None:
            value, is_done = _edited_at_once(columns, rows, edit.columns)
            rows = rows & ~is_done
            if not rows.any():
                return value, is_lost
        values: list[bytes | None] = []
        texts = columns.value.filter(pa.array(rows)).to_pylist()
        numbers = np.flatnonzero(rows).tolist()
        as_sent = (columns.datatype[rows] > _JSON).tolist()
        for row, text, is_undecoded in zip(numbers, texts, as_sent, strict=True):
            try:
                if is_undecoded and edit.edit is not _drop:
                    raise ValueError
                edited = edit.edit(text)
                if edited is not None and len(edited) > max(len(text), DOCUMENT_BYTES):
                    raise ValueError  # memory is bound by the largest document
            except ValueError:
                edited = self._unparsable(columns, row, text)
                is_lost[row] = edited is None
            if is_undecoded and edited is None:  # its reason may tell a part of the value
                is_lost[row] = True
            values.append(edited)
        replaced = pc.replace_with_mask(value, pa.array(rows), pa.array(values, pa.binary()))
        return replaced, is_lost

    def _unparsable(self, columns: DataColumns, row: int, text: bytes) -> bytes | None:
        match self._settings.unparsable:
            case Unparsable.KEEP:
                return text
            case Unparsable.FAIL:
                where = f"vbucket {columns.vbucket[row]} seqno {columns.seqno[row]}"
                raise QualityError(
                    f"{where}, collection {columns.collection_id[row]:#x}: found a value that "
                    "cannot be parsed, expected JSON, as [privacy] has rules for it and "
                    "privacy.unparsable is fail; set it to drop or keep, or change the "
                    "document at the source"
                )
        return None


def _edited_at_once(
    columns: DataColumns, rows: Mask, editor: ColumnEditor
) -> tuple[pa.BinaryArray, Mask]:
    """Return the values after the edits that the editor could make, and the mask of those rows."""
    rows = rows & (columns.datatype <= _JSON)
    chosen = columns.value if rows.all() else columns.value.filter(pa.array(rows))
    edited, is_left = editor.edited(chosen)
    most_bytes = np.maximum(pc.binary_length(chosen).to_numpy(), DOCUMENT_BYTES)
    is_left |= pc.binary_length(edited).to_numpy() > most_bytes
    if rows.all():
        return edited, ~is_left
    is_done = rows.copy()
    is_done[rows] = ~is_left
    return pc.replace_with_mask(columns.value, pa.array(rows), edited), is_done


def _told(detail: pa.StringArray, is_lost: Mask) -> pa.StringArray:
    return pc.if_else(pa.array(is_lost), DROPPED, detail) if is_lost.any() else detail


def _nulled(column: pa.Array, rows: Mask) -> pa.Array:
    if not rows.any():
        return column
    return pc.if_else(pa.array(rows), pa.scalar(None, column.type), column)


_XATTRS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)


def refuse_hidden(text: bytes, below: frozenset[Step]) -> None:
    """Raise ValueError if an xattr with edits inside is a text that looks like JSON.

    An xattr that is no JSON is a text in the column: a path would find nothing in it.
    """
    try:
        for name, value in _XATTRS.decode(text).items():
            is_text = bytes(value).startswith(b'"')
            if is_text and (FieldName(name) in below or Wildcard.VALUES in below):
                inside = _TEXT.decode(value).lstrip("\ufeff \t\r\n")
                if inside.startswith(("{", "[")):
                    raise ValueError("found a text that looks like JSON")
    except msgspec.DecodeError:
        raise ValueError("found no JSON") from None


_CONSTANTS: Final = {
    ord('"'): b'"***"',
    ord("{"): b"{}",
    ord("["): b"[]",
    ord("t"): b"false",
    ord("f"): b"false",
    ord("n"): b"null",
}


def masks(values: Sequence[bytes]) -> list[bytes]:
    """Return a constant of the same JSON type: ``"***"``, 0, false, {}, []; null stays."""
    constant = _CONSTANTS.get
    return [constant(value[0], b"0") for value in values]


def hashes_with(hash_key: bytes) -> Edit:
    """Return the edit that replaces a value by a JSON string ``KEYID:HASH``; null stays.

    HASH is the keyed BLAKE2b (RFC 7693) of 16 bytes, in hexadecimal digits: of a string's text,
    else of the JSON as sent. KEYID identifies the key: 8 digits of the key's BLAKE2b.
    """
    secret = hash_key if len(hash_key) <= blake2b.MAX_KEY_SIZE else blake2b(hash_key).digest()
    prefix = '"' + blake2b(hash_key, digest_size=_KEY_ID_BYTES).hexdigest() + ":"
    keyed = blake2b(key=secret, digest_size=_HASH_BYTES)
    text_of: Callable[[bytes], str] = msgspec.json.Decoder(str).decode

    def hashes(values: Sequence[bytes]) -> list[bytes]:
        found = []
        for value in values:
            if value[0] == _QUOTE:
                told = text_of(value).encode() if _BACKSLASH in value else value[1:-1]
            elif value == b"null":
                found.append(value)
                continue
            else:
                told = value
            digest = keyed.copy()
            digest.update(told)
            found.append(f'{prefix}{digest.hexdigest()}"'.encode())
        return found

    return hashes
