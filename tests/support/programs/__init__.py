"""Programs of others that tests use."""
