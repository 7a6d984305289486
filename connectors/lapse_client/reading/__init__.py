"""What is read back from topics: the life of a message, events, the records from a bookmark on."""
