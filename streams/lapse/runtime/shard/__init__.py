"""The parts that own one shard: runner, inbox, machine, answers, and payloads."""
