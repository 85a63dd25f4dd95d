"""The settings of a run, where they come from, and the memory and windows derived from them."""
