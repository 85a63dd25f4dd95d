"""Changes the manifest of a bucket, and brings its vbuckets up to it.

An active vbucket comes to the bucket's manifest by system events at its next seqnos; any other does
when it is active. A change is saved as a whole before any vbucket hears of it, with all the
manifests that vbuckets stand at on their way.
"""

from collections.abc import Callable, Iterable, Sequence

from dcp.server.model.manifest import Manifest, Step
from dcp.server.model.manifest_changes import ManifestChange, changed
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import VbucketState

Save = Callable[[Manifest, Sequence[Step]], None]
"""Saves a manifest and the steps to it; raises OSError, and then has saved nothing."""


class BucketManifest:
    """Used under the bucket's lock."""

    def __init__(
        self,
        manifest: Manifest,
        save: Save,
    ) -> None:
        self.current = manifest
        self._save = save
        self._target = manifest
        self._ways: dict[int, tuple[Manifest, list[Step]]] = {}
        """From manifests, by id, to the target; vbuckets that stand at the same share them."""

    def change(self, changes: Iterable[ManifestChange], vbuckets: Sequence[Vbucket]) -> None:
        """Change scopes and collections, all under one new uid; ``vbuckets`` are to follow.

        Raises:
            ManifestError: a change that cannot be made; then none is.
            OSError: the data folder cannot be written; then none is.
        """
        manifest = changed(self.current, tuple(changes))
        ways = _ways_to(manifest, vbuckets)
        self._save(manifest, [step for _, steps in ways.values() for step in steps])
        self._target, self._ways = manifest, ways
        self.current = manifest

    def take(self, manifest: Manifest) -> None:
        """Have a manifest that was made elsewhere, and is saved; no vbucket is made to follow."""
        self.current = manifest

    def learn(self, vbucket: Vbucket) -> None:
        """Take the manifest that another server's items made of a vbucket, if it is newer.

        Other vbuckets are not made to follow: they come from that server too.
        """
        learned = vbucket.documents.collections.manifest
        if learned.uid > self.current.uid:
            self.current = learned

    def follow(self, vbucket: Vbucket) -> bool:
        """Let an active vbucket emit what it lacks of the manifest's system events, if anything.

        Returns whether the vbucket has new items.

        Raises:
            OSError: the data folder cannot be written; the vbucket follows when it is next asked.
        """
        if vbucket.state is not VbucketState.ACTIVE:
            return False
        steps = self._steps_from(vbucket.documents.collections.manifest)
        if steps:
            vbucket.documents.emit(steps)
        return bool(steps)

    def _steps_from(self, manifest: Manifest) -> list[Step]:
        """Return the steps to the bucket's manifest, each of which is saved."""
        if self._target is not self.current:
            self._target, self._ways = self.current, {}
        if id(manifest) not in self._ways:
            steps = manifest.steps(self.current)
            if steps:
                self._save(self.current, steps)
            self._ways[id(manifest)] = manifest, steps  # which also keeps the id its own
        return self._ways[id(manifest)][1]


def _ways_to(
    manifest: Manifest, vbuckets: Sequence[Vbucket]
) -> dict[int, tuple[Manifest, list[Step]]]:
    stands = (v.documents.collections.manifest for v in vbuckets if v.state is VbucketState.ACTIVE)
    return {key: (each, each.steps(manifest)) for key, each in {id(m): m for m in stands}.items()}
