"""Transfers: messages handed over to a queue of another deployment."""
