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
