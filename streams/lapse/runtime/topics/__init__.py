"""The topics of a deployment: which are needed, which exist, how they are created, changed and removed."""
