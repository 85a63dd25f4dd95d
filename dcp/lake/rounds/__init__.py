"""Plans of rounds, their progress, results and reports, and where a lake stands."""
