"""What queue shards and SOW shards have in common: one vocabulary for what a step yields."""
