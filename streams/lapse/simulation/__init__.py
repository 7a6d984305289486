"""What would become of a queue's messages: the real core in virtual time, and recorded stretches gone through again."""
