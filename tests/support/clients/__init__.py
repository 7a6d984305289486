"""What the client library is tried against."""
