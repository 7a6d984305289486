"""The SOW state machine: the latest record of every key, each with its own lifetime (S1 to S11, C1, C44 to C47).

It is pure: records, commands and instants come in, changes and outputs go out. The entry point is `shard.SowShard`.
"""
