"""The ledger that goes on: each batch adds what is new to what is open."""
