"""`python tests/commands.py > docs/commands.md`: prints the reference of the commands, from what `--help` knows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from lapse.cli import COMMANDS, main

HEAD = """# Commands

Every command of lapse with its options, as `--help` (`-h`) has them. [Running lapse](operations.md#commands) says what
each is for. This page is printed by `python tests/commands.py`, and a test compares the two.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | not done, as if a queue does not exist or an expression cannot be read; standard error says what to do |
| 2 | wrong usage: an option or argument that is unknown or missing, or an option whose value cannot be read |

With `--json` a command prints one object, or one object on each line. An empty list has no lines.
Objects of one kind always have the same keys; what does not apply is `null`, 0 or empty. Only what `lapse explain`
prints has further keys that depend on what happened.

- `KAFKA_BOOTSTRAP_SERVERS` names the brokers for every command. `--bootstrap-servers` comes before it, and
  `lapse.toml` after it.
- `NO_COLOR` turns colours off. `LAPSE_USER` and `LAPSE_SECRET` are [lapse's own user](security.md).
"""


def page() -> str:
    """The page, with the commands in the order of their names."""
    context = click.Context(main, info_name="lapse")
    parts = [HEAD]
    for name in sorted(COMMANDS):
        command = main.get_command(context, name)
        assert command is not None
        needs = f"Needs `pip install 'lapse[{COMMANDS[name].extra}]'`.\n"
        own = click.Context(command, parent=context, info_name=name)
        parts += section(command, f"lapse {name}", own, "##", needs)
    return "\n".join(parts)


def section(command: click.Command, path: str, context: click.Context, level: str, needs: str = "") -> Iterator[str]:
    """What is said of one command, and then of those below it."""
    text = [f"{level} `{path}`\n", *(f"{paragraph}\n" for paragraph in paragraphs(command.help or ""))]
    text += [needs] if needs else []
    if not isinstance(command, click.Group):
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        text += [f"    {usage}\n"]
    if rows := list(options(command, context)):
        text += ["| option | default, range | meaning |", "|---|---|---|", *rows, ""]
    yield "\n".join(text)
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            assert below is not None
            yield from section(
                below, f"{path} {name}", click.Context(below, parent=context, info_name=name), f"{level}#"
            )


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """A row for each option; `--help` is said once for all."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        names, published = (text.replace("|", "\\|") for text in record)
        meaning, value = re.fullmatch(
            r"(.*?)\s*(?:\[([^\[\]]*(?:default|required|[<>])[^\[\]]*)\])?", published, re.DOTALL
        ).groups()
        shown = escaped(value.removeprefix("default: ")) if value else ""
        yield f"| `{names}` | {shown} | {escaped(meaning)} |"


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; what it wants to keep its lines (`\\b`) is an example."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text).split("\f")[0].strip()):
        if paragraph.startswith("\b"):
            yield "```\n" + paragraph.removeprefix("\b").strip("\n") + "\n```"
        else:
            yield escaped(" ".join(paragraph.split()))


def escaped(text: str) -> str:
    """Text as Markdown shows it literally, but for code between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[])", r"\\\1", part) for part in parts).strip()


if __name__ == "__main__":
    print(page(), end="")
