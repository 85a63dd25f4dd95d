"""The change log: plans and records of rounds, and the index of applied rounds."""
