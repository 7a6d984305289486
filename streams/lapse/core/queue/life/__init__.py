"""The life of a message: its states, and the one table by which it goes from one to another."""
