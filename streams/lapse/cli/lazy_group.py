"""LazyGroup: a group of subcommands, each in a module of its own, which is loaded when it is used."""

import errno
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from lapse.uncollected import uncollected

_UNKNOWN: Final = re.compile(r"No such command '(.+)'\.")
"""Click's message for a missing subcommand."""


_OTHER_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "ack": frozenset({"acknowledge", "complete"}),
    "cancel": frozenset({"nack", "reject", "release"}),
    "depth": frozenset({"count", "size", "stats"}),
    "dlq": frozenset({"dead-letters", "letters"}),
    "explain": frozenset({"history", "trace"}),
    "follow": frozenset({"subscribe", "tail", "watch"}),
    "peek": frozenset({"browse", "list", "ls", "show"}),
    "publish": frozenset({"produce", "put", "send"}),
    "query": frozenset({"get", "list", "ls", "read", "show"}),
    "redrive": frozenset({"replay", "requeue", "retry"}),
    "subscribe": frozenset({"consume", "get", "receive"}),
}
"""The words of other systems for subcommands."""

_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of the system for an output that takes no more."""

_WHOLE: Final = 300
"""The most characters of a summary in a group's help: click's own limit cuts sentences."""

_AS_JSON: Final = "lapse.as_json"
"""Key of the context's `meta`: whether the command line has `--json`."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """A subcommand that is not loaded yet."""

    target: str
    """`module:attribute` of the click command."""

    summary: str
    """Its line in `lapse --help`, which loads no subcommands."""

    extra: str = "cli"
    """The optional dependencies that it needs, as in `pip install 'lapse[worker]'`."""


class _JsonError(click.ClickException):
    """The error of a command with `--json`: an object on the last line of standard error."""

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(error.format_message())
        self.exit_code = error.exit_code
        code = getattr(error.__cause__, "code", None)
        self._facts = {"code": str(code)} if isinstance(code, str) and code else {}

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the object."""
        import json  # late imports here: `lapse --help` stays quick

        text = json.dumps({"error": {**self._facts, "text": self.message}}, ensure_ascii=False)
        click.echo(text, file=file, err=file is None)


class LazyGroup(click.Group):
    """A group of commands that loads a command only to run it, or to show its help."""

    def __init__(self, *args: object, lazy: Mapping[str, Lazy], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # click's own parameters, passed on
        self.lazy = lazy

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own options, and note whether the command is to print JSON."""
        ctx.meta[_AS_JSON] = "--json" in (args[: args.index("--")] if "--" in args else args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return the subcommand `cmd_name`; None if there is none of that name."""
        if cmd_name in self.lazy:
            try:
                return _load(f"{ctx.command_path} {cmd_name}", self.lazy[cmd_name])
            except click.ClickException:
                if ctx.resilient_parsing:  # shell completion must print no advice
                    return None
                raise
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand. If it loads a missing package only now, name the extra to install.

        If there is no such subcommand, here or in a group below, name similar ones. With `--json`, errors are JSON.
        """
        try:
            return self._invoked(ctx)
        except _JsonError:  # of a group below
            raise
        except click.ClickException as error:
            from lapse_client.reading.printable import printable  # a late import: `lapse --help` stays quick

            error.message = printable(_unprintable(error.__cause__) or error.message)
            if ctx.meta.get(_AS_JSON):
                raise _JsonError(error) from error
            raise

    def _invoked(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            unknown = _UNKNOWN.fullmatch(error.message)
            if unknown is not None and error.ctx is not None and isinstance(error.ctx.command, click.Group):
                names = error.ctx.command.list_commands(error.ctx)
                from difflib import get_close_matches

                near = get_close_matches(unknown[1], names)
                near += [name for name in names if name not in near and unknown[1] in _OTHER_WORDS.get(name, ())]
                error.message += f" Did you mean {' or '.join(near)}?" if near else ""
            raise
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            text = f"the output cannot be written: {error.strerror}. Make room, and look what was done before a repeat"
            raise click.ClickException(text) from error
        except UnicodeEncodeError as error:
            raise click.ClickException(_unprintable(error) or str(error)) from error
        except ModuleNotFoundError as error:
            name = ctx.invoked_subcommand or ""
            if name not in self.lazy or error.name is None or _is_ours(error.name):
                raise
            _fail(f"{ctx.command_path} {name}", self.lazy[name], error.name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a subcommand without loading any, and options."""
        found = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self._summary(ctx, name)) for name in found]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands from their summaries, loading none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def _summary(self, ctx: click.Context, name: str) -> str:
        """Return the one-line help of a subcommand."""
        if name in self.lazy:
            return self.lazy[name].summary
        command = super().get_command(ctx, name)
        return command.get_short_help_str(_WHOLE) if command else ""


def _load(path: str, lazy: Lazy) -> click.Command:
    """Import the module of a subcommand, whose names from the first on are its path. If that fails, name the extra."""
    module, _, attribute = lazy.target.partition(":")
    try:
        with uncollected():  # looking for garbage took a seventh of the time of imports
            command = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or _is_ours(error.name):
            raise
        _fail(path, lazy, error.name)
    assert isinstance(command, click.Command), f"{lazy.target} is no click command"
    return command


def _unprintable(error: BaseException | None) -> str:
    """Return what to do if the terminal's encoding lacks a character; empty for another error."""
    if not isinstance(error, UnicodeEncodeError) or error.encoding.lower().startswith("utf"):  # then of an argument
        return ""
    wanted = ascii(error.object[error.start : error.start + 1])
    return (
        f"the output has {wanted}, which its encoding {error.encoding} lacks. Set PYTHONIOENCODING=utf-8, or "
        "LC_ALL=C.UTF-8, or print --json"
    )


def _is_ours(module: str) -> bool:
    """Return whether a module is lapse's own, so that its absence has another cause than a missing extra."""
    return module.partition(".")[0] in ("lapse", "lapse_client", "lapse_gateway", "lapse_kombu", "lapse_spark")


def _fail(path: str, lazy: Lazy, missing: str) -> NoReturn:
    """Fail with the name of the missing package, and how to install it."""
    raise click.ClickException(
        f"`{path}` needs the Python package {missing}, which is not installed. "
        f"Install it with: pip install 'lapse[{lazy.extra}]'"
    )
