"""The settings of a run, their sources, and the memory and windows that follow from them."""
