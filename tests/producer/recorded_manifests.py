"""The manifests that the recorded servers had, and how they came by them."""

from dcp.producer.manifest_changes import (
    CreateCollection,
    CreateScope,
    DropCollection,
    DropScope,
    ManifestChange,
    changed,
)
from dcp.server.model.manifest import Manifest

DISK: tuple[tuple[ManifestChange, ...], ...] = (
    (
        CreateScope("s8"),
        CreateCollection("s8", "c9", id=9),
        CreateCollection("s8", "big", id=0x1F4),
        CreateCollection("", "c8", id=8),
    ),
    (CreateCollection("s8", "ttl", max_ttl_seconds=30, id=0xA),),
    (DropCollection("s8", "ttl"),),
)
"""05-collections-disk.jsonl: the changes of manifests 1 to 3."""

LIVE: tuple[tuple[ManifestChange, ...], ...] = (
    (
        CreateScope("s8"),
        CreateCollection("s8", "c9", id=9),
        CreateCollection("", "c8", id=8),
    ),
    (CreateCollection("s8", "ca", id=0xA),),
    (DropCollection("", "c8"),),
    (DropScope("s8"),),
    (DropCollection("", ""), CreateCollection("", "cb", id=0xB)),
)
"""05b-collections-live.jsonl: the changes of manifests 1 to 5; the first is 05c's, too."""


def after(changes: tuple[tuple[ManifestChange, ...], ...]) -> Manifest:
    """The manifest that changes lead to."""
    manifest = Manifest()
    for together in changes:
        manifest = changed(manifest, together)
    return manifest
