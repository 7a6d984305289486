"""Measurements of SOW topics."""
