"""The topics of a deployment: which are needed, which there are, and what becomes of them."""
