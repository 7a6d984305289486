"""The error that ends the demo early."""


class DemoFailed(Exception):
    """The demo cannot go on; the text says what is missing or what went wrong, and what to do."""
