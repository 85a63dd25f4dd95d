"""The one table of commands that the producer answers, from the modules that answer them."""

from typing import Final

from dcp.producer.admin_commands import ADMIN_COMMANDS
from dcp.producer.dcp_commands import DCP_COMMANDS
from dcp.producer.document_commands import DOCUMENT_COMMANDS
from dcp.producer.manifest_commands import MANIFEST_COMMANDS
from dcp.producer.seqno_commands import SEQNO_COMMANDS
from dcp.producer.session import Command
from dcp.producer.setup_commands import SETUP_COMMANDS

COMMANDS: Final[dict[int, Command]] = {
    **SETUP_COMMANDS,
    **MANIFEST_COMMANDS,
    **DOCUMENT_COMMANDS,
    **DCP_COMMANDS,
    **SEQNO_COMMANDS,
    **ADMIN_COMMANDS,
}
