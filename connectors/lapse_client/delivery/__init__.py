"""Deliveries: their arrival, their buffers, and access to keys, values and headers."""
