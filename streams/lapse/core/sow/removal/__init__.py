"""Removal: records leave by deadline, delete or fault, with tombstones and dead letters."""
