from collections.abc import Sequence

ABSENT = -1
"""In a map's row: a copy that has no node."""


def replicas_behind(owner: int, members: Sequence[bool], count: int) -> list[int]:
    """Return the nodes of ``count`` copies: the members after the owner, by number, as in a ring.

    ``ABSENT`` fills the row if there are too few members.
    """
    nodes = len(members)
    ring = ((owner + step) % nodes for step in range(1, nodes))
    found = [node for node in ring if members[node]][:count]
    return found + [ABSENT] * (count - len(found))


def even_owners(owners: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return an owner among ``nodes`` for each vbucket: even shares, with as few moves as possible.

    Raises:
        ValueError: there are no nodes.
    """
    if not nodes:
        raise ValueError("owners of vbuckets: found no nodes, expected one or more")
    least, more = divmod(len(owners), len(nodes))
    held = {node: list(owners).count(node) for node in nodes}
    # Nodes that own the most get the larger shares: that saves moves.
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
