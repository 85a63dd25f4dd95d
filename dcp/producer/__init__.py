"""The reference producer: a DCP server over TCP, and the relay; asyncio at its edge only."""
