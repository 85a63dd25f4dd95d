"""The change log: its rows, the records of rounds, and the index of applied rounds."""
