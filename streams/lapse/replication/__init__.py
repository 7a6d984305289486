"""Replication: from one deployment's SOW topics to another's, with the deadlines as they are (S10)."""
