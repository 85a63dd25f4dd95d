"""``dcplake rollbacks``: what rollbacks took back, key by key."""

from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.cli.terminal.table import table

if TYPE_CHECKING:
    from dcp.lake.tables.undone_key import DocumentState, UndoneKey

_SHOWN_CHARACTERS: Final = 32


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    lines: Annotated[
        int,
        Option("-n", "--lines", min=0, help="the newest so many rollbacks and keys"),
    ] = 20,
    json: Annotated[bool, Option("--json", help="one JSON object per rollback and key")] = False,
) -> int:
    """Read and print."""
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.change_log.epochs import newest_epochs
    from dcp.lake.query.rollbacks import undone_keys

    settings = settings_from(config, lake, overrides)
    with opened_lake(settings) as tables, tables.read_once():
        epochs = newest_epochs(tables, lines)
        keys, total = undone_keys(tables, lines)
    if json:
        for epoch in epochs:
            say_json({"epoch": epoch.to_json()})
        for key in keys:
            say_json({"undone": key.to_json()})
        return 0
    if not epochs and not total:
        say("no rollback so far")
    for epoch in epochs:
        say(str(epoch))
    if keys:
        say()
        say(undone_table(keys))
    if total > len(keys):
        say(f"… and {total - len(keys):,} more keys: SELECT * FROM rollbacks (dcplake sql)")
    return 0


def undone_table(keys: "list[UndoneKey]") -> str:
    """Return the keys as a table for people."""
    heads = ("table", "version", "restored from", "vbucket", "key", "before (lost)", "after")
    return table(heads, [_row(key) for key in keys])


def _row(key: "UndoneKey") -> tuple[object, ...]:
    origin = {0: "the empty table", -1: "replaced"}.get(
        key.restored_version, f"version {key.restored_version}"
    )
    return (
        key.table,
        key.version,
        origin,
        key.vbucket,
        key.key,
        _state_text(key.before),
        _state_text(key.after),
    )


def _state_text(state: "DocumentState | None") -> str:
    if state is None:
        return "(no document)"
    text = state.value.decode("utf-8", "backslashreplace")
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"{state.seqno}@{state.vb_uuid:016x} {text}"
