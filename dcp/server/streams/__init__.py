"""DCP streams to consumers: backfill, snapshots, markers, filters, windows."""
