"""Scheduled messages: invisible until their instant, and until there is room for them."""
