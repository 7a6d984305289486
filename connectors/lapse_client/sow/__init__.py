"""SOW topics: queries, subscriptions and deletions."""
