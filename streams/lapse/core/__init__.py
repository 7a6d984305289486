"""The rules of lapse as deterministic state machines: no clock, no I/O, no randomness.

Time and bytes come in, changes and outputs go out. `lapse.runtime` writes the changes to the journal and sends the
outputs. Applying the same changes again rebuilds the same state.
"""
