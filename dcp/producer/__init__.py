"""The reference producer: a DCP server over TCP; asyncio at its edge only."""
