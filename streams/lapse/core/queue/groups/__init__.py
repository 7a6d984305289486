"""Message groups: one consumer at a time, in turn, by weight and limit."""
