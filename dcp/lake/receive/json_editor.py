"""Replaces values inside JSON texts, by path; the rest of a text keeps its meaning.

A path is a sequence of steps (`dcp.lake.config.json_paths.json_path`). Each step except ``[*]``
goes through arrays, too; for ``[*]`` a value that is no array is its own only element. So
``$.lines.email`` and ``$.lines[*].email`` are the email of each line, or of the only one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dcp.lake.config.json_paths import FieldName, Step, Wildcard

Edit = Callable[[Sequence[bytes]], Sequence[bytes | None]]
"""Gets the texts of JSON values; returns a replacement for each, None to drop the value."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANYTHING: Final = msgspec.json.Decoder(msgspec.Raw)
_ENCODER: Final = msgspec.json.Encoder()
_SPACE: Final = b" \t\r\n"


def drop(values: Sequence[bytes]) -> list[None]:
    return [None] * len(values)


@dataclass(slots=True, eq=False)
class _EditNode:
    """The edits at and below one path."""

    edit: Edit | None = None
    names: dict[str, "_EditNode"] = field(default_factory=dict)
    values: "_EditNode | None" = None
    """Below all values of an object."""
    elements: "_EditNode | None" = None

    def at(self, step: Step) -> "_EditNode":
        if isinstance(step, FieldName):
            return self.names.setdefault(step.name, _EditNode())
        if step is Wildcard.ELEMENTS:
            self.elements = self.elements or _EditNode()
            return self.elements
        self.values = self.values or _EditNode()
        return self.values


def text_editor(edits: Mapping[tuple[Step, ...], Edit]) -> Callable[[bytes], bytes | None]:
    """Return the function that edits a JSON text by these paths; it returns None to drop the text.

    An edit of a whole value covers edits of its parts. The function raises ValueError if the text
    is no JSON, or nested deeper than the parser goes.
    """
    root = _EditNode()
    for steps, edit in edits.items():
        node = root
        for step in steps:
            node = node.at(step)
        node.edit = edit

    def edited(text: bytes) -> bytes | None:
        try:
            return _edited(text, [root])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"found no JSON that can be read ({error})") from None

    return edited


def _edited(text: bytes | msgspec.Raw, nodes: list[_EditNode]) -> bytes | None:
    """Make the edits of several nodes in one pass. The first node with an edit of the whole covers
    all.
    """
    plain = bytes(text).lstrip(_SPACE)
    if not plain.startswith(b"["):
        nodes = _with_elements(nodes)
    for node in nodes:
        if node.edit is not None:
            return node.edit([bytes(_ANYTHING.decode(text))])[0]
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


def _with_elements(nodes: list[_EditNode]) -> list[_EditNode]:
    """Add the nodes of ``[*]``: a value that is no array counts as its only element."""
    found = nodes
    while more := _known([node.elements for node in found if node.elements not in found]):
        found = _known([*more, *found])
    return found


def _known(nodes: Iterable[_EditNode | None]) -> list[_EditNode]:
    """Return each node once, without None."""
    return list({id(node): node for node in nodes if node is not None}.values())


def _replace(members: dict[str, msgspec.Raw], name: str, text: bytes | None) -> None:
    if text is None:
        del members[name]
    else:
        members[name] = msgspec.Raw(text)
