"""Schedule: messages that are invisible until their instant, and until the target depth has room for them."""
