"""Builds a ``ConsumerConnection`` from a client's settings."""

import secrets
from typing import Final

from dcp.client.settings import ConnectionSettings
from dcp.protocol.bootstrap import (
    METADATA_OPEN_FLAGS,
    OPEN_FLAGS,
    OPTIONAL_CONTROLS,
    BootstrapSettings,
    listed_control,
)
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import Credentials
from dcp.protocol.negotiation import CHANGE_STREAMS, GROUP_TAG

_NONCE_BYTES: Final = 24


def new_protocol_connection(
    settings: ConnectionSettings, credentials: Credentials, name: str, *, open_dcp: bool = True
) -> ConsumerConnection:
    """Return the protocol of a new connection with this name.

    Raises:
        ConfigError: the name is too long.
    """
    history = (listed_control(CHANGE_STREAMS, "true"),) if settings.change_streams else ()
    tag = settings.receiver_group_tag
    group = (listed_control(GROUP_TAG, str(int(tag))),) if tag else ()
    return ConsumerConnection(
        BootstrapSettings(
            settings.bucket,
            name,
            open_flags=METADATA_OPEN_FLAGS if settings.metadata_only else OPEN_FLAGS,
            controls=(*OPTIONAL_CONTROLS, *history, *group),
            open_dcp=open_dcp,
        ),
        credentials,
        secrets.token_urlsafe(_NONCE_BYTES),
        flow=settings,
        liveness=settings,
    )
