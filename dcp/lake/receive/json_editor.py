"""Replaces values inside JSON texts, by path; the rest of a text keeps its meaning, byte for byte
where that is quick.

A path is a sequence of steps (`dcp.lake.config.json_paths.json_path`). Each step but ``[*]`` goes
through arrays, too, and ``[*]`` is also a value that is no array: ``$.lines.email`` and
``$.lines[*].email`` are the email of each line, or of the only one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import msgspec

from dcp.lake.config.json_paths import FieldName, Step, Wildcard

Edit = Callable[[bytes], bytes | None]
"""Gets the text of a JSON value; returns the text that replaces it, None to drop it."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANYTHING: Final = msgspec.json.Decoder(msgspec.Raw)
_ENCODER: Final = msgspec.json.Encoder()
_SPACE: Final = b" \t\r\n"
_BEHIND_A_TEXT: Final = (b" ", b",", b":", b"]", b"}")


@dataclass(slots=True, eq=False)
class _Node:
    """The edits at and below one place."""

    edit: Edit | None = None
    names: dict[str, "_Node"] = field(default_factory=dict)
    values: "_Node | None" = None
    """Below all values of an object."""
    elements: "_Node | None" = None

    def at(self, step: Step) -> "_Node":
        if isinstance(step, FieldName):
            return self.names.setdefault(step.name, _Node())
        if step is Wildcard.ELEMENTS:
            self.elements = self.elements or _Node()
            return self.elements
        self.values = self.values or _Node()
        return self.values


class JsonEditor:
    """Edits texts of JSON by fixed paths. An edit of a whole value covers edits of its parts."""

    def __init__(self, edits: Mapping[tuple[Step, ...], Edit]) -> None:
        self._root = _Node()
        for steps, edit in edits.items():
            node = self._root
            for step in steps:
                node = node.at(step)
            node.edit = edit
        self._members = _members(self._root)
        self._decoder = None if self._members is None else msgspec.json.Decoder(_struct(self._root))

    def edited(self, text: bytes) -> bytes | None:
        """Return the text with the edits, None if the whole of it is dropped.

        Raises:
            ValueError: the text is no JSON, or deeper than the parser goes.
        """
        try:
            if self._members is not None and b"\\" not in text:
                found = self._spliced(text, self._members)
                if found is not None:
                    return found
            return _edited(text, [self._root])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"found no JSON that can be read ({error})") from None

    def _spliced(self, text: bytes, members: "tuple[_Member, ...]") -> bytes | None:
        """Return the text with its members replaced in place; None: the text needs the long way.

        A text without a backslash has each name as it is written here. If it has the name once,
        that is the member which the decoder found, and its value follows.
        """
        assert self._decoder is not None
        try:
            document = self._decoder.decode(text)
        except msgspec.ValidationError:  # JSON, of another shape
            return None
        places = []
        for member in members:
            value: Any = document
            for attribute in member.attributes:
                value = getattr(value, attribute, msgspec.UNSET)
            if value is msgspec.UNSET and len(member.quoted) == 1:
                continue  # deeper, a second member of the same name may hide it
            for name in member.quoted:
                if text.count(name) > 1:
                    return None
            if value is not msgspec.UNSET:
                places.append((text.find(member.quoted[-1]), bytes(value), member))
        if len(places) > 1:
            places.sort(key=_begin, reverse=True)
        for begin, value, member in places:
            edited = member.edit(value)
            at = text.find(value, begin + len(member.quoted[-1]))
            if edited is None:
                text = _without(text, begin, at + len(value))
            else:
                text = b"".join((text[:at], edited, text[at + len(value) :]))
        return text


_begin: Final = itemgetter(0)


@dataclass(frozen=True, slots=True)
class _Member:
    quoted: tuple[bytes, ...]
    """The names on the way to it, as JSON writes them."""
    attributes: tuple[str, ...]
    """The same of the decoded structs."""
    edit: Edit


def _members(
    node: _Node, quoted: tuple[bytes, ...] = (), attributes: tuple[str, ...] = ()
) -> tuple[_Member, ...] | None:
    """Return the edited members; None if an edit is not of members of objects alone."""
    if node.edit is not None:
        return (_Member(quoted, attributes, node.edit),) if quoted else None
    if node.values is not None or node.elements is not None or not node.names:
        return None
    found: tuple[_Member, ...] = ()
    for number, (name, below) in enumerate(node.names.items()):
        name_text = _ENCODER.encode(name)
        members = _members(below, (*quoted, name_text), (*attributes, f"m{number}"))
        # Behind the end of another text such a name would be found in the wrong place.
        if members is None or b"\\" in name_text or name_text[1:2] in _BEHIND_A_TEXT:
            return None
        found += members
    return found


def _struct(node: _Node) -> Any:
    """Return the type that decodes the members of `_members`, and skips all others."""
    if node.edit is not None:
        return msgspec.Raw
    fields = [
        (f"m{number}", _struct(below) | msgspec.UnsetType, msgspec.UNSET)
        for number, below in enumerate(node.names.values())
    ]
    renamed = {f"m{number}": name for number, name in enumerate(node.names)}
    return msgspec.defstruct("Members", fields, rename=renamed)


def _without(text: bytes, begin: int, end: int) -> bytes:
    """Return a text without the member at these places, and without one of its commas."""
    after = len(text) - len(text[end:].lstrip(_SPACE))
    if text[after : after + 1] == b",":
        return text[:begin] + text[after + 1 :].lstrip(_SPACE)
    return text[:begin].rstrip(_SPACE).removesuffix(b",") + text[end:]


def _edited(text: bytes | msgspec.Raw, nodes: list[_Node]) -> bytes | None:
    """Make the edits of several nodes in one pass; that of the first node with one covers all."""
    plain = bytes(text).lstrip(_SPACE)
    if not plain.startswith(b"["):
        nodes = _with_elements(nodes)
    for node in nodes:
        if node.edit is not None:
            return node.edit(bytes(_ANYTHING.decode(text)))
    if plain.startswith(b"{"):
        members = _OBJECT.decode(plain)
        for name in list(members):
            below = _known([*(n.names.get(name) for n in nodes), *(n.values for n in nodes)])
            if below:
                _replace(members, name, _edited(members[name], below))
        return _ENCODER.encode(members)
    if plain.startswith(b"["):
        below = _known([*(node.elements for node in nodes), *nodes])
        found = (_edited(each, below) for each in _ARRAY.decode(plain))
        return b"[" + b",".join(each for each in found if each is not None) + b"]"
    _ANYTHING.decode(text)  # a scalar, or no JSON
    return plain


def _with_elements(nodes: list[_Node]) -> list[_Node]:
    """Add the nodes of ``[*]``: what is no array counts as its only element."""
    found = nodes
    while more := _known([node.elements for node in found if node.elements not in found]):
        found = _known([*more, *found])
    return found


def _known(nodes: Iterable[_Node | None]) -> list[_Node]:
    """Return each node once, without None."""
    return list({id(node): node for node in nodes if node is not None}.values())


def _replace(members: dict[str, msgspec.Raw], name: str, text: bytes | None) -> None:
    if text is None:
        del members[name]
    else:
        members[name] = msgspec.Raw(text)
