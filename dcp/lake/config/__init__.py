"""The settings of a run, their sources, and the memory and windows derived from them."""
