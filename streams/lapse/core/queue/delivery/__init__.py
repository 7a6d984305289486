"""How messages go out: which one comes next, who gets it, and when it comes again."""
