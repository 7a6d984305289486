"""Subscriptions: who gets which updates and removals."""
