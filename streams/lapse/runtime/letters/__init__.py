"""What happens after messages have left: their dead letters, and the calls of `on_expire` (D1 to D4, L15)."""
