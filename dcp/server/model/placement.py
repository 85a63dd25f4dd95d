"""Places copies of vbuckets on nodes, and balances owners: plain arithmetic on nodes.

The copies of a vbucket are on the members behind its owner, in the order of their numbers, as in a
ring. Owners change as little as an even share needs.
"""

from collections.abc import Sequence

ABSENT = -1
"""Stands in a map's row for a copy that there is no node for."""


def replicas_behind(owner: int, members: Sequence[bool], count: int) -> list[int]:
    """Return the nodes of ``count`` copies, ``ABSENT`` where members are too few."""
    nodes = len(members)
    ring = ((owner + step) % nodes for step in range(1, nodes))
    found = [node for node in ring if members[node]][:count]
    return found + [ABSENT] * (count - len(found))


def even_owners(owners: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return an owner among ``nodes`` for each vbucket: even shares, as few moves as possible.

    Raises:
        ValueError: there are no nodes.
    """
    if not nodes:
        raise ValueError("owners of vbuckets: found no nodes, expected one or more")
    least, more = divmod(len(owners), len(nodes))
    held = {node: list(owners).count(node) for node in nodes}
    # Whoever holds most already keeps the larger shares.
    ranked = sorted(nodes, key=lambda node: (-held[node], node))
    share = {node: least + (place < more) for place, node in enumerate(ranked)}
    kept = dict.fromkeys(nodes, 0)
    found: list[int | None] = []
    for owner in owners:
        stays = owner in kept and kept[owner] < share[owner]
        found.append(owner if stays else None)
        if stays:
            kept[owner] += 1
    takers = iter([node for node in nodes for _ in range(share[node] - kept[node])])
    return [next(takers) if owner is None else owner for owner in found]
