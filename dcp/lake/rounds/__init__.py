"""The plans, progress, results and reports of rounds, and the state of a lake."""
