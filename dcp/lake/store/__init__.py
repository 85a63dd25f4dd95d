"""The ports of a lake's store and its tables; their places, and looks at them without Spark."""
