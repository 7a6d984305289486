"""Rows and contestants: what is compared, how each contestant runs, and how the outcome is shown."""
