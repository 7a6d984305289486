"""Dead letters while they come: counted, shown, and told to whoever should know."""
