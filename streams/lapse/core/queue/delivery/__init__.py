"""Delivery: which message comes next, which subscription gets it, and how long a retry waits."""
