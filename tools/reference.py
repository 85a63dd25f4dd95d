"""Writes pages of docs/reference: settings, commands, exit codes, negotiation, rows of metrics.

``python -m tools.reference`` after any of these was changed; a test compares the pages with what
this writes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from typer.main import get_command

from dcp.cli.main import GROUPS, command
from dcp.errors import DcplakeError
from dcp.lake.config.settings import SECTIONS
from dcp.lake.config.settings_document import toml_value
from dcp.lake.config.settings_load import PREFIX
from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.protocol.negotiation import CONTROL_TERMS, FEATURE_TERMS
from dcp.records import default_of
from dcp.setting_keys import describe_expected, shown_settings

REFERENCE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"
_HELP_WIDTH: Final = 100
_SETTINGS: Final = f"""\
# Settings

The code writes this page and [conf/dcplake.toml](../../conf/dcplake.toml), which you may copy. A key has three places: a file
(`--config`), the environment variable `{PREFIX}<SECTION>_<KEY>`, and the option `--set SECTION.KEY=VALUE`. The later wins. Unknown keys
are errors. The password is no setting: `source.password_env` or `source.password_file` names where it is.

No command needs `--config`: without it the variables, the options and the defaults say all. [`dcplake init`](../howto/doctor.md)
writes a file.

In a file, relative paths begin at the folder of the file. That holds for `lake.root` also if the file does not name it: its default, `lake`,
is then a folder beside the file. So a command means the same lake from every folder. In a variable or an option (`--lake`, `--set`) a
path begins at the current folder. URIs and names of a catalog are no paths.
"""
_COMMANDS: Final = """\
# Commands

The code writes this page: it has the output of `dcplake COMMAND --help`. The Spark jobs in `jobs/` take the options of their commands
(`replicate`: those of `run`), and end with the same [exit codes](exit-codes.md).
"""
_EXIT_CODES: Final = """\
# Exit codes

Written from the code: the errors of `dcp/errors.py` by the code that commands and Spark jobs end with. 0 is
success, 141 says that the reader of the output went away. [What to do after an exit code](../howto/act-on-an-exit-code.md)
says what to do about each.

| code | error | meaning |
|---|---|---|
"""


_NEGOTIATION: Final = """\
# What is negotiated

The code (`dcp/protocol/negotiation.py`) writes this page. It says what a consumer asks a server for when it connects, why, and what it
loses if the server refuses. dcplake replicates an old server all the same, without that; `dcplake doctor` says what a cluster refuses.
dcplake cannot read a server that refuses a required control, and the error names the control. [All that we speak](protocol.md) of DCP.

## HELLO features

| feature | why | without it |
|---|---|---|
"""
_COMPRESSION: Final = """\

## Compressed values

What `SNAPPY` brings, by kv_engine's code (`engines/ep/src/`):

- **From memory** a document comes as the node stores it. It is compressed if its client compressed it (bucket with `compression_mode`
  passive) or the server did (active). Without `SNAPPY` the node inflates it, for each stream anew (`dcp/active_stream.cc`,
  `shouldModifyItem` and `makeResponseFromItem`).
- **From disk**, so in a first load, all come compressed, whatever the mode (`getValueFilter`). Couchstore keeps every value compressed and
  sends it as it lies on disk (`kvstore/couch-kvstore/couch-kvstore.cc`, `getContentMeta` and `fetchDoc`). Magma compresses other values if
  that makes them smaller (`kvstore/magma-kvstore/magma-kvstore.cc`, `scanOne`).
- Windows, `round.target_bytes` and rates of backfills count the bytes on the network: the sent frames. Memory does not depend on the
  inflated size ([memory](memory.md#what-each-term-is-and-what-keeps-it)).

dcplake asks for it because the network and data nodes are dearer than a lake's CPU. JSON documents of 1 KB take about half of the
network, and neither nodes nor relays inflate them. A lake's task does, for a small share of a first load's CPU. Tiny documents become
no smaller, and cost as much ([figures](../../benchmarks/README.md#compressed-and-edited-values)).
"""
_CONTROLS: Final = """\

## DCP controls

| control | value | sent | why | without it |
|---|---|---|---|---|
"""
_CHANGE_STREAMS: Final = """\

## Keys without values

`dcplake verify` opens DCP for keys, seqnos and CAS alone, by the flag that [each server answers
rightly](protocol.md#streams-without-values). What that costs, by kv_engine's code (`engines/ep/src/`):

- The network carries the same with both: a header, metadata and the key of each document.
- Servers before 7.6 get NO_VALUE. They read keys and metadata from the disk, and no document.
- Newer ones get NO_VALUE_WITH_UNDERLYING_DATATYPE. They read each document from memory or disk, as for a first load. They leave the value
  out when they send it (`dcp/active_stream.cc`, `getValueFilter` and `makeResponseFromItem`). With `SNAPPY` they inflate only documents
  with xattrs. So a verification costs a node the reads of a first load, and none of its network. Verify a large bucket when its disks have
  time, or a part of it (`--vbuckets`).

## Change streams

What `change_streams` brings ([how to use it](../howto/keep-change-history.md)), by kv_engine's code (`engines/ep/src/`):

- Buckets of Magma accept it, also those that retain nothing, which then send what they always do. Others refuse it with
  NOT_SUPPORTED, servers before 7.2 with EINVAL, as any value but `true` (`dcp/producer.cc`, `control`; `canRetainHistory`).
  Nodes ask each other for it (`dcp/consumer.cc`), so replicas have the history, too.
- **From memory** no snapshot holds a key twice. A document of a collection with history replaces none. If its key is in the open
  checkpoint, the next one begins with it (`checkpoint.cc`, `canDedup` and `queueDirty`; `checkpoint_manager.cc`, `queueDirty`). So it is
  for all consumers. Those that asked get the flag HISTORY 0x10 with the marker (`dcp/active_stream.cc`, `getMarkerFlags`).
- **From disk** a consumer that asked gets all versions from the begin of the history on, in the order of seqnos. The flags are HISTORY and
  MAY_CONTAIN_DUPLICATES 0x20. The newest older versions come before, under a marker without these flags. Both markers have the same start
  and end. The node leaves the first out if there is nothing below it (`dcp/backfill_disk_to_stream.cc`, `setupForHistoryScan`,
  `getNextScanState` and `scanHistoryCreate`; `dcp/active_stream.cc`, `markDiskSnapshot` and `backfillReceived`). The snapshot is complete
  at that end, as any.
- A replica keeps the data of an active's disk in a checkpoint of that kind, repeats and all. It sends them with HISTORY alone, or without a
  flag to a consumer that did not ask (`dcp/passive_stream.cc`, `processMarker`; `getMarkerFlags`).
- A client needs no `flatbuffers_system_events` for it. Without them the node does not send MODIFY_COLLECTION, which turns a collection's
  history on and off. At the end of a snapshot SEQNO_ADVANCED stands for it. The events that create collections do not name the history
  (`dcp/active_stream.cc`, `shouldProcessItem` and `isSeqnoAdvancedEnabled`).
- Purges and rollbacks go by the rules of any stream: neither the failover log nor the purge seqno knows of the history.
"""
_NOT_ASKED: Final = """\

## Not asked for

`force_value_compression`: the node compresses the uncompressed values in its memory, for each stream anew (kv_engine
`engines/ep/src/dcp/active_stream.cc`, `makeResponseFromItem`). From disk all comes compressed without it. For later writes it would save
bytes by the CPU of a data node.

`enable_out_of_order_snapshots`, and streams of some collections: a lake streams whole vbuckets, and applies `[filter]` to the rows that
arrive.
"""

_METRIC_ROWS: Final = re.compile(
    r"(?:^\| `dcplake_\w+` \| (?:gauge|counter) \|.*\n)+", re.MULTILINE
)
"""The rows of one table in a page whose other text is written by hand."""


def pages() -> dict[str, str]:
    """Return the text of each page, by its name in docs/reference."""
    return {
        "settings.md": _SETTINGS + "".join(_settings()),
        "commands.md": _COMMANDS + "".join(_commands()),
        "exit-codes.md": _EXIT_CODES + "".join(_exit_codes()),
        "negotiation.md": "".join(
            (
                _NEGOTIATION,
                *_features(),
                _COMPRESSION,
                _CONTROLS,
                *_controls(),
                _CHANGE_STREAMS,
                _NOT_ASKED,
            )
        ),
        "metrics.md": _METRIC_ROWS.sub(lambda _: "".join(_metrics()), _written("metrics.md")),
    }


def _written(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def _settings() -> Iterator[str]:
    for name, section in SECTIONS.items():
        yield f"\n## {name}\n\n{(section.__doc__ or '').strip()}\n\n"
        yield "| key | default | meaning |\n|---|---|---|\n"
        for key in shown_settings(section):
            text = _cell(f"{key.metadata['text']} Value: {describe_expected(key)}.")
            yield f"| `{key.name}` | `{toml_value(default_of(key))}` | {text} |\n"


def _commands() -> Iterator[str]:
    for group, names in GROUPS.items():
        yield f"\n## {group}\n"
        for name in names:
            parsed = get_command(command(name))
            with parsed.make_context(
                f"dcplake {name}", [], resilient_parsing=True, terminal_width=_HELP_WIDTH
            ) as context:
                text = parsed.get_help(context).rstrip()
                yield f"\n### dcplake {name}\n\n```text\n{text}\n```\n"


def _exit_codes() -> Iterator[str]:
    errors = [DcplakeError]
    for error in errors:  # which grows meanwhile
        errors += error.__subclasses__()
    ours = (each for each in errors if each.__module__ == DcplakeError.__module__)
    for error in sorted(ours, key=lambda each: (each.exit_code, each.__name__)):
        text = re.sub(r"\s+", " ", (error.__doc__ or "").strip())
        yield f"| {error.exit_code} | `{error.__name__}` | {_cell(text)} |\n"


def _metrics() -> Iterator[str]:
    for metric in LakeFigures.metrics:
        labels = "".join(f"`{label}`" for label in re.findall(r"\[(\w+)", metric.path))
        yield f"| `{metric.name}` | {metric.type} | {labels} | {_cell(metric.help)} |\n"


def _features() -> Iterator[str]:
    for term in FEATURE_TERMS:
        name = f"`{term.feature.name}` {term.feature:#04x}"
        yield f"| {name} | {_cell(term.why)} | {_cell(term.lost)} |\n"


def _controls() -> Iterator[str]:
    for name, term in CONTROL_TERMS.items():
        since = ".".join(map(str, term.since))
        asked = term.asked if not any(term.since) else f"{term.asked}, from {since} on"
        lost = f"required: {term.lost}" if term.is_required else term.lost
        cells = (f"`{name}`", term.value, asked, term.why, lost)
        yield f"| {' | '.join(map(_cell, cells))} |\n"


def _cell(text: str) -> str:
    """Return a text that ends no cell of a table and begins no element of HTML."""
    return text.replace("|", r"\|").replace("<", "&lt;")


if __name__ == "__main__":
    for page, text in pages().items():
        (REFERENCE / page).write_text(text, encoding="utf-8")
