"""How messages leave that nobody settled: purged, cut off by Kafka, or waiting for the broker to take their letters."""
