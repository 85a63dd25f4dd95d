"""The change log: what a round plans, appends and records, and which rounds were applied."""
