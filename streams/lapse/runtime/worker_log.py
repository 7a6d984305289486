"""A worker's log: the lines on which an operator acts, as text or JSON.

Lines of libraries are condensed or left out.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

Format = Literal["text", "json"]

_LIBRARIES: Final = ("faust", "mode", "aiokafka", "kafka", "asyncio", "lapse_client.kafka")
_SERVICE: Final = "[^"
"""The beginning of lines that mode writes for a service of lapse."""

_EVERY_S: Final = 60.0
"""How often a library's error is logged, s, with the number of those in between."""

_PASSING_S: Final = 5.0
"""How long an error must last before it is logged, s, if its library tries again after it. New groups cause such
errors, too."""

_MOST_KEPT: Final = 1_000
_KEY_CHARACTERS: Final = 60


def settings(level: str, form: Format) -> dict[str, Any]:
    """Return the settings for `logging.config.dictConfig`.

    Args:
        level: the lowest level that is logged. `debug` includes every line of the libraries.
        form: one line of text per record, or one JSON object.
    """
    formatters: dict[Format, dict[str, Any]] = {"text": {"()": TextFormatter}, "json": {"()": JsonFormatter}}
    handler: dict[str, Any] = {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stdout"}
    if level != "debug":
        handler["filters"] = ["condensed"]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": formatters[form]},
        "filters": {"condensed": {"()": Condensed}},
        "handlers": {"default": handler},
        "root": {"level": level.upper(), "handlers": ["default"]},
    }


def begin(formatter: logging.Formatter) -> None:
    """Log to standard error from level info on, unless logging is configured already."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class Condensed(logging.Filter):
    """Leaves out lines of libraries below an error, and logs their errors once a minute with a count."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[tuple[str, str], tuple[float, int]] = {}
        self._retried: dict[tuple[str, str], tuple[float, float]] = {}
        """When errors began after which a library tries again, and when each last occurred; seconds since the epoch."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; add the number of similar records that were not."""
        of_library = record.name.startswith(_LIBRARIES) or str(record.msg).startswith(_SERVICE)
        if not of_library:
            return True
        if record.levelno < logging.ERROR:
            return False
        if record.levelno > logging.ERROR:
            return True
        key = record.name, str(record.msg)[:_KEY_CHARACTERS]
        if self._passes(key, record):
            return False
        shown_s, left_out = self._shown.get(key, (float("-inf"), 0))
        if record.created - shown_s < _EVERY_S:
            self._shown[key] = shown_s, left_out + 1
            return False
        if len(self._shown) >= _MOST_KEPT:
            self._shown.clear()
        self._shown[key] = record.created, 0
        if left_out:
            since = datetime.fromtimestamp(shown_s, UTC).isoformat(timespec="seconds")
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more since {since})", ()
        return True

    def _passes(self, key: tuple[str, str], record: logging.LogRecord) -> bool:
        """Return whether an error may be over at the library's next attempt."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if not any(getattr(one, "retriable", False) for one in arguments):
            return False
        began_s, last_s = self._retried.get(key, (record.created, record.created))
        if record.created - last_s > _EVERY_S:
            began_s = record.created
        if len(self._retried) >= _MOST_KEPT:
            self._retried.clear()
        self._retried[key] = began_s, record.created
        return record.created - began_s < _PASSING_S


class TextFormatter(logging.Formatter):
    """Writes one line of text per record. Line ends and control characters of a message become escapes.

    Messages contain words of producers and clients. A line end in such a word must not look like a record.

    Args:
        form: the form of a line, as `logging.Formatter` takes it.
    """

    def __init__(self, form: str = "[%(asctime)s] [%(process)s] [%(levelname)s] %(message)s") -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the standard library's name
        """Return the record's line, without its traceback."""
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the standard library's name
        """Return a traceback with indented lines, so that none of them looks like a record."""
        return "\n".join(f"  {_escaped(line)}" for line in super().formatException(ei).split("\n"))


def _escaped(text: str) -> str:
    """Return a text with its line ends and control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per record: at, level, logger, process, message, and if there are any, facts and trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object of a record, on one line."""
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if facts := getattr(record, "facts", None):
            fields["facts"] = facts
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # text that is not Unicode, such as a path in another encoding, or a very large integer
            return json.dumps(fields, default=str, skipkeys=True)
