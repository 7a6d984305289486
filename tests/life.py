"""`python tests/life.py > docs/message-life.md`: prints the table by which messages live."""

from support.suite.life_table import page

if __name__ == "__main__":
    print(page(), end="")
