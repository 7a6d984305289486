"""Monitoring of dead letters: counts, a report, and alerts."""
