"""Message groups: they share a queue in turn, by weight, each with a limit of leased messages."""
