"""Workers with one fault each, as programs."""
