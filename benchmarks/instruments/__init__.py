"""Parts that measurements share: messages, a worker, steady publishing, and clocks."""
