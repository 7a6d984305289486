"""What the test run itself needs."""
