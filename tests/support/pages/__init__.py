"""Pages of the documentation, run as they stand."""
