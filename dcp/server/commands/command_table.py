"""The commands that the producer and a relay both answer."""

from typing import Final

from dcp.server.commands.dcp_commands import DCP_COMMANDS
from dcp.server.commands.document_commands import DOCUMENT_COMMANDS
from dcp.server.commands.manifest_commands import MANIFEST_COMMANDS
from dcp.server.commands.seqno_commands import SEQNO_COMMANDS
from dcp.server.commands.session import CommandHandler
from dcp.server.commands.setup_commands import SETUP_COMMANDS

SHARED_COMMANDS: Final[dict[int, CommandHandler]] = {
    **SETUP_COMMANDS,
    **MANIFEST_COMMANDS,
    **DOCUMENT_COMMANDS,
    **DCP_COMMANDS,
    **SEQNO_COMMANDS,
}
