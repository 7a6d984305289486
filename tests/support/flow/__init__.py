"""Messages and records that flow while something breaks, and the account that must balance."""
