"""Sessions with shards: commands and answers over a channel, and the life of a client object."""
