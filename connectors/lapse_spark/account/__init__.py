"""The parts of a ledger: the accounts from a queue's topics, and the verdicts from them."""
