"""Code that several tests share. pytest puts `tests` on the path, so: `from support.suite.contract import ...`."""
