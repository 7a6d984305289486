"""The running ledger: each batch adds new facts to the open messages."""
