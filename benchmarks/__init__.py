"""Compares lapse with its peers, side by side; see README.md."""
