"""All commands of a producer; nobody carries its orders out."""

from typing import Final
from unittest.mock import create_autospec

from dcp.producer.admin_commands import Administrator
from dcp.producer.commands import producer_commands

COMMANDS: Final = producer_commands(create_autospec(Administrator))
