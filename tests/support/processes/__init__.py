"""Workers and gateways as processes, to be killed and frozen at will."""
