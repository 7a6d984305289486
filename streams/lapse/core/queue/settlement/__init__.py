"""Settlements: acknowledgments, cancels, expiries and renewals, by bookmarks or by a filter."""
