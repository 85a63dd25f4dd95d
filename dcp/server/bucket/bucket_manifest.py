"""The bucket's manifest of collections, and its spread to vbuckets.

An active vbucket follows the manifest by system events at its next seqnos. Other vbuckets follow
when they become active.
"""

from collections.abc import Callable, Sequence

from dcp.server.model.manifest import Manifest, Step
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import VbucketState

Save = Callable[[Manifest, Sequence[Step]], None]
"""Saves a manifest and the steps to it. If it raises OSError, nothing is saved."""


class BucketManifest:
    """The bucket's current manifest; callers hold the bucket's lock."""

    def __init__(
        self,
        manifest: Manifest,
        save: Save,
    ) -> None:
        self.current = manifest
        self._save = save
        self._target = manifest
        self._ways: dict[int, tuple[Manifest, list[Step]]] = {}
        """Steps from a manifest (by ``id``) to the target. Vbuckets at the same manifest share one
        list."""

    def change(self, manifest: Manifest, vbuckets: Sequence[Vbucket]) -> None:
        """Save and use a changed manifest, and plan the steps of ``vbuckets`` to it."""
        ways = _ways_to(manifest, vbuckets)
        # The data folder must know every manifest on the way first: vbuckets save their manifest by
        # number.
        self._save(manifest, [step for _, steps in ways.values() for step in steps])
        self._target, self._ways = manifest, ways
        self.current = manifest

    def take(self, manifest: Manifest) -> None:
        """Adopt a saved manifest; no vbucket follows it."""
        self.current = manifest

    def learn(self, vbucket: Vbucket) -> None:
        """Adopt the manifest of a vbucket that another server filled, if it is newer."""
        learned = vbucket.documents.collections.manifest
        # The other vbuckets need no events: they come from that server, too.
        if learned.uid > self.current.uid:
            self.current = learned

    def follow(self, vbucket: Vbucket) -> bool:
        """Let an active vbucket emit its missing system events; return True if it has new items."""
        # A replica gets the events from its active vbucket, under that one's seqnos.
        if vbucket.state is not VbucketState.ACTIVE:
            return False
        steps = self._steps_from(vbucket.documents.collections.manifest)
        if steps:
            vbucket.documents.emit(steps)
        return bool(steps)

    def _steps_from(self, manifest: Manifest) -> list[Step]:
        # A learned or adopted manifest makes the planned steps useless.
        if self._target is not self.current:
            self._target, self._ways = self.current, {}
        if id(manifest) not in self._ways:
            steps = manifest.steps(self.current)
            if steps:
                self._save(self.current, steps)
            # The reference keeps ``id`` from being reused.
            self._ways[id(manifest)] = manifest, steps
        return self._ways[id(manifest)][1]


def _ways_to(
    manifest: Manifest, vbuckets: Sequence[Vbucket]
) -> dict[int, tuple[Manifest, list[Step]]]:
    stands = (v.documents.collections.manifest for v in vbuckets if v.state is VbucketState.ACTIVE)
    return {key: (each, each.steps(manifest)) for key, each in {id(m): m for m in stands}.items()}
