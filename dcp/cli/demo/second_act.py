"""The demo's second act: a node dies with writes that only it had, already in the tables.

It shows them in SQL, fails over, writes on the new branch, runs again, and shows that those rows
are gone and only they.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from dcp.cli.demo.airport_changes import LostWrites, lost_writes
from dcp.cli.demo.serve_process import USER, VBUCKETS, DemoProducer
from dcp.cli.displays.run_output import replicate_aloud
from dcp.cli.terminal.output import say
from dcp.cli.terminal.table import table
from dcp.types import vbucket_of

if TYPE_CHECKING:
    from dcp.lake.config.settings import Settings
    from dcp.lake.tables.lake_tables import LakeTables

_LOST_NODE: Final = 2
_DIFFERENCES: Final = """\
SELECT coalesce(a.key, b.key) AS key,
  CASE WHEN b.key IS NULL THEN 'gone' WHEN a.key IS NULL THEN 'new' ELSE 'changed' END AS what
FROM (SELECT * FROM docs VERSION AS OF {before}) a
FULL OUTER JOIN (SELECT * FROM docs VERSION AS OF {after}) b ON a.key = b.key
WHERE a.key IS NULL OR b.key IS NULL OR a.cas <> b.cas ORDER BY 2, 1"""


def second_act(
    producer: DemoProducer,
    settings: "Settings",
    lake: "LakeTables",
    stored: Mapping[str, Mapping[str, object]],
    *,
    sound: int,
    seed: int,
) -> None:
    """Show a failover with a lost tail; ``sound`` is the version of docs before it."""
    from dcp.client.kv.admin_client import AdminClient
    from dcp.client.kv.kv_client import KvClient

    account = (producer.seeds, USER, producer.password, producer.bucket)
    with KvClient(*account) as client, AdminClient(*account) as admin:
        writes = lost_writes(stored, _is_on_lost_node, seed=seed)
        say()
        say(f"Second act. Node {_LOST_NODE} gets writes that its replica has not seen yet:")
        admin.pause_replication()
        client.set([*writes.new, *writes.updated])
        client.delete(writes.deleted)
        say(
            f"  {len(writes.new)} airports stored, {len(writes.updated)} updated, "
            f"{len(writes.deleted)} deleted, and replicated into the tables at once:"
        )
        third = replicate_aloud("third replication", settings).applied[-1].version
        say()
        say(_keys(lake, "Rows of a history that is about to end", writes))
        admin.kill(_LOST_NODE)
        admin.failover(_LOST_NODE)
        say()
        say(f"node {_LOST_NODE} is killed and failed over: its replica never had those writes")
        admin.resume_replication()
    with KvClient(producer.seeds, USER, producer.password, producer.bucket) as client:
        client.set(writes.kept)
    say(f"meanwhile: {len(writes.kept)} airports updated, on the new branch, at the same seqnos")
    fourth = replicate_aloud("fourth replication", settings).applied[-1].version
    had_changed = f"What the lost writes had changed (docs version {sound} -> {third})"
    is_left = f"What is left of that (docs version {sound} -> {fourth})"
    say_in_order(
        [
            lambda: _keys(lake, "The same rows now", writes),
            lambda: _differences(lake, had_changed, sound, third),
            lambda: _differences(lake, is_left, sound, fourth),
            lambda: _audit(lake),
            lambda: _verified(settings),
        ]
    )


def say_in_order(parts: Iterable[Callable[[], str]]) -> None:
    """Say what some questions find, in their order; two of them are asked at a time."""
    with ThreadPoolExecutor(2) as pool:
        for text in pool.map(lambda part: part(), parts):
            say()
            say(text)


def _is_on_lost_node(key: bytes) -> bool:
    return vbucket_of(key, VBUCKETS) >= VBUCKETS // 2  # the second of two nodes


def _keys(lake: "LakeTables", title: str, writes: LostWrites) -> str:
    from dcp.lake.store.sql import string_list

    keys = [key for key, _ in (*writes.new, *writes.updated)] + list(writes.deleted)
    found = lake.spark.sql(
        "SELECT key, vbucket, seqno, vb_uuid, substr(document, 1, 60) AS document FROM documents "
        f"WHERE key IN ({string_list(key.decode() for key in keys)}) ORDER BY key"
    )
    rows = [
        (row["key"], row["vbucket"], row["seqno"], f"{int(row['vb_uuid']):016x}", row["document"])
        for row in found.collect()
    ]
    heads = ("key", "vbucket", "seqno", "branch", "document")
    return f"{title} (of {len(keys)} keys)\n{table(heads, rows)}"


def _differences(lake: "LakeTables", title: str, before: int, after: int) -> str:
    found = lake.spark.sql(_DIFFERENCES.format(before=before, after=after)).collect()
    return f"{title}\n{table(('key', 'what'), [tuple(row) for row in found])}"


def _audit(lake: "LakeTables") -> str:
    from dcp.cli.lake.rollbacks import undone_table
    from dcp.lake.query.rollbacks import undone_keys

    keys, total = undone_keys(lake)
    return f"dcplake rollbacks: {total} keys taken back\n{undone_table(keys)}"


def _verified(settings: "Settings") -> str:
    from dcp.lake.verify.compare import verify

    report = verify(settings)
    if (error := report.error()) is not None:
        raise error
    return f"dcplake verify:\n{report}"
