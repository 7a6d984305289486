"""What was at an instant: queues and SOW topics, by their journals alone."""
