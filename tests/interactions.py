"""`python tests/interactions.py > docs/interactions.md`: prints the table of all pairs of features."""

from support.suite.interaction import page

if __name__ == "__main__":
    print(page(), end="")
