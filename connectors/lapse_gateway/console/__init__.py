"""The console: pages that show queues, SOW topics and dead letters, and act on them."""
