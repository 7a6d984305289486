"""Transfers: messages of a queue go to a queue of another deployment, in two stages (Q17)."""
