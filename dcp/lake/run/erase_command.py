"""Asks the driver of a lake to erase documents (``dcplake erase``), and searches files for them."""

from dataclasses import replace
from pathlib import Path

from dcp.errors import ConfigError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.change_log.erase_request import MOST_KEYS, Erasure, kept_out, key_hash
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import Settings
from dcp.lake.maintain.document_removal import (
    FileSearch,
    FoundDocuments,
    find_documents,
    search_files,
    unknown_collection,
)
from dcp.lake.tables.lake_tables import LakeTables


def erasure_from_file(file: Path, collection: str, *, keeps_out: bool = False) -> Erasure:
    """Read keys from a file, one a line. Empty lines are ignored.

    Raises:
        ConfigError: the file cannot be read, or has no key or too many.
    """
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--keys {file}: {error}; expected a file of keys in UTF-8. A key that is not UTF-8 "
            "stands in it as in the column key: \\x and its bytes in hexadecimal"
        ) from None
    keys = {line.removesuffix("\r") for line in lines} - {""}
    if not 0 < len(keys) <= MOST_KEYS:
        raise ConfigError(
            f"--keys {file}: found {len(keys):,} keys, expected 1 to {MOST_KEYS:,}, one a line; "
            "ask several times for more"
        )
    return Erasure(collection, frozenset(map(key_hash, keys)), keeps_out)


def ask_erasure(
    settings: Settings, erasure: Erasure, *, dry_run: bool = False
) -> tuple[FoundDocuments, ControlRequest | None]:
    """Write the request. Return the rows with the price of their erasure, and the request.

    With ``dry_run`` nothing is written, and the request is None.

    Raises:
        ConfigError: the lake has no such collection; or the lake has a document that is still at
            the source, and ``keeps_out`` is not set.
        LakeError: there is no lake.
    """
    with opened_lake(settings) as lake, lake.read_once():
        _require_known(lake, erasure)
        newest = latest_round(lake)
        found = find_documents(lake, erasure, newest, states_at(lake, newest))
        if found.at_source > found.deleted and not erasure.keeps_out:
            raise ConfigError(found.still_at_source())
        if dry_run:
            return found, None
        request = ControlRequest.new(RequestAction.ERASE, None, erasure.options())
        Control(lake).write(request, RequestState.REQUESTED)
        return found, request


def check_erased(settings: Settings, erasure: Erasure) -> FileSearch:
    """Search every data file of the lake for documents.

    Of keys that a request keeps out, only values count.

    Raises:
        ConfigError: the lake has no such collection.
        LakeError: there is no lake.
    """
    with opened_lake(settings) as lake:
        _require_known(lake, erasure)
        all_kept = kept_out(Control(lake).requests()).get(erasure.collection, frozenset())
        kept = erasure.key_hashes & all_kept
        if erasure.keeps_out or not kept:
            return search_files(lake, erasure)
        found = search_files(lake, replace(erasure, key_hashes=kept, keeps_out=True))
        if others := erasure.key_hashes - kept:
            found = found.joined(search_files(lake, replace(erasure, key_hashes=others)))
        return found


def _require_known(lake: LakeTables, erasure: Erasure) -> None:
    """Raise ConfigError if the lake never had a table of the collection."""
    if unknown := unknown_collection(lake, erasure):
        raise ConfigError(f"--{unknown}")
