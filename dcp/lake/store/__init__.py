"""The ports of a lake's store and its tables, their places, and cached reads without Spark."""
