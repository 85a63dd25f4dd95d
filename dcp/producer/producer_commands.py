"""The table of all commands that the producer answers."""

from typing import Final

from dcp.producer.admin_commands import admin_commands
from dcp.producer.administrator import Administrator
from dcp.producer.write_commands import WRITE_COMMANDS
from dcp.server.commands.command_table import SHARED_COMMANDS
from dcp.server.commands.session import CommandHandler

COMMANDS: Final[dict[int, CommandHandler]] = {**SHARED_COMMANDS, **WRITE_COMMANDS}
"""All commands except administrative ones (`producer_commands`)."""


def producer_commands(administrator: Administrator) -> dict[int, CommandHandler]:
    return COMMANDS | admin_commands(administrator)
