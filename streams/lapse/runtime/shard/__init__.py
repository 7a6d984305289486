"""The parts that own one shard: runner, inbox, machine, admission of commands, and payloads."""
