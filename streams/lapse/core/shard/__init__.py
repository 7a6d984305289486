"""The common parts of queue shards and SOW shards: contract, step, events, answers, and the agreement on the end."""
