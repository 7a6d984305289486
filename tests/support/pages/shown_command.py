"""Extracts the command lines that pages of the documentation show."""

import re
import shlex
from collections.abc import Iterator

_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```\n?", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)
_SHELL = ("", "sh", "console")


def examples(page: str) -> list[str]:
    """Return a page's examples: code blocks without a language or with a shell's, and indented ones."""
    fenced = [block for kind, block in _FENCED.findall(page) if kind in _SHELL]
    indented = [re.sub("^ {4}", "", one, flags=re.MULTILINE) for one in _INDENTED.findall(_FENCED.sub("", page))]
    return [one.replace("\\\n", " ") for one in [*fenced, *indented]]


def words_of_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command in a shell's line."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set("();<>|&"):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # not a command but text with an apostrophe
        return
    yield words
