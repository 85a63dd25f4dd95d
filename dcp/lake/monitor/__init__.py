"""Monitoring of running tasks: live files, and metrics; the lake itself is ``observe``'s."""
