"""Rates: how many messages may be delivered in a window of time, and what must wait."""
