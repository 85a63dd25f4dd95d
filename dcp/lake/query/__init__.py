"""SQL on a lake, its views, and what it tells of itself."""
