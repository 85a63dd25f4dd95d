"""DCP streams to consumers: backfill, snapshots, markers, filters, flow control windows."""
