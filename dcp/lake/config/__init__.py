"""Settings: of a run, where they come from, and the memory and windows that follow from them."""
