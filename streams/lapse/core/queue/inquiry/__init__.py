"""What can be seen of a queue: depth, peek, filters, and what a user's rights leave of them."""
