"""SQL on a lake: its views, its status, its rollbacks."""
