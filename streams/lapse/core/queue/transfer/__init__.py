"""Transfers: messages are handed over to a queue of another deployment."""
