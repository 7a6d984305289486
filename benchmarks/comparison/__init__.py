"""The comparison: its rows, how each contestant runs, and how outcomes are shown."""
