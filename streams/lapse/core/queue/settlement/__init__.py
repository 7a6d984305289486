"""Settlements: acknowledgments, cancels, expirations and renewals, by bookmarks or by a filter."""
