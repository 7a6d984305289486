"""The parts of a ledger: what the topics of a queue tell, put together and judged."""
