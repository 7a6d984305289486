"""What can go wrong around the embedded broker.

    EmbeddedError
    ├── JavaMissing       no Java runtime of at least version 17
    ├── JarUnavailable    a pinned jar is neither cached nor downloadable
    ├── JarCorrupt        a file does not have the size or the sha256 of its pin
    └── BrokerFailed      the broker does not start, or is not in the state a call needs

Every message says what is wrong, where, and what to do next.
"""


class EmbeddedError(Exception):
    """An error that prevents the use of the embedded broker, or of Spark's jars."""


class JavaMissing(EmbeddedError):
    """No Java runtime of at least version 17 was found."""


class JarUnavailable(EmbeddedError):
    """A pinned jar is neither in a cache nor downloadable."""


class JarCorrupt(EmbeddedError):
    """A file does not have the size or the sha256 of its pin."""


class BrokerFailed(EmbeddedError):
    """The broker does not start, or is not in the state that a call needs."""
