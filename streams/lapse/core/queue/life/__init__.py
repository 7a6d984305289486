"""The life of a message: its states, and the table of permitted transitions."""
