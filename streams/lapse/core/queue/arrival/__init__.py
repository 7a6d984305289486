"""Arrival: records of the underlying topics become messages with places, as far as the target depth permits."""
