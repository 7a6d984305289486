"""Replication: copies SOW topics of one deployment to another, with unchanged deadlines (S10)."""
