"""The nodes of a cluster: sockets, the event loop, HTTP."""
