"""Rates: how many messages may be delivered in a window, and what waits for the next one."""
