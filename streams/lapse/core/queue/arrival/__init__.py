"""How messages come to a queue: from records of the underlying topics to places, at most as many as its depth."""
