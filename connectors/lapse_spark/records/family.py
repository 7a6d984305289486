"""The facts of dead letters as columns, by the headers of their family (`lapse.protocol.letter_family`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lapse.core.generation import FIRST_REWOUND
from lapse.protocol import header as names
from lapse.protocol.letter_family import FAMILIES, LAPSE, LetterFamily
from lapse_spark.records import facts, header

Reader = Callable[[Column, Column], Column]


def missing_headers(family: LetterFamily) -> dict[str, Column]:
    """Return the conditions under which a letter of a family is incomplete, by the text of the fault."""
    required = [(family.topic, "topic"), (family.partition, "partition"), (family.offset, "offset")]
    faults = {f"header {name} is missing or unreadable": F.col(field).isNull() for name, field in required}
    if family.name == LAPSE.name:
        faults[f"header {family.entity} is missing"] = F.col("entity").isNull()
        faults[f"header {names.REASONS} is missing or empty"] = F.size("reasons") == 0
    return faults


_MOST_REASONS: Final = max(len(family.reasons) for family in FAMILIES)


def find_family(headers: Column) -> Column:
    """Return the index in `FAMILIES` of the first family whose marker a record has; null for other records."""
    places = F.lit(None).cast("int")
    for place, family in reversed(list(enumerate(FAMILIES))):
        places = F.when(header.present(headers, family.marker), place).otherwise(places)
    return places


def read_facts(headers: Column, family: Column) -> list[Column]:
    """Return the facts of a letter by the headers of its family. One look-up of a header serves all families.

    Args:
        headers: headers from `header.split_headers`.
        family: family from `find_family`.

    Returns:
        family, entity, topic, partition, offset, reasons, message.
    """
    origin = _Look(headers, family, from_origin=True)
    latest = _Look(headers, family, from_origin=False)
    why = [latest.read(partial(_reason, place)) for place in range(_MOST_REASONS)]
    reasons = F.split(F.coalesce(*why, F.lit("")), ",")
    return [
        _by_place(family, lambda one: one.name).alias("family"),
        origin.read(lambda one: one.entity).alias("entity"),
        F.nullif(origin.read(lambda one: one.topic), F.lit("")).alias("topic"),
        origin.read(lambda one: one.partition, _partition_reader).try_cast("int").alias("partition"),
        _position(origin.read(lambda one: one.offset, _offset_reader)).alias("offset"),
        # Every fault uses the reasons. Computed once, they keep filters on faults from repeating the look-ups.
        facts.compute_once(F.when(family.isNotNull(), F.array_remove(reasons, ""))).alias("reasons"),
        latest.read(lambda one: one.message).alias("message"),
    ]


@dataclass(frozen=True, slots=True)
class _Look:
    """Looks up the header that a letter's family uses for a fact."""

    headers: Column
    family: Column
    from_origin: bool

    def read(
        self, name: Callable[[LetterFamily], str], reader: Callable[[LetterFamily], Reader] = lambda _: header.text
    ) -> Column:
        """Return a fact. Families that write it alike share one expression, with the header's name per row."""
        alike: dict[tuple[Reader, bool], list[int]] = {}
        for place, one in enumerate(FAMILIES):
            alike.setdefault((reader(one), one.piles_up and self.from_origin), []).append(place)
        wanted = _by_place(self.family, name)
        found = F.lit(None)
        for (read, piles_up), places in reversed(alike.items()):
            read_now = read(header.oldest_first(self.headers) if piles_up else self.headers, wanted)
            found = F.when(self.family.isin(places), read_now).otherwise(found) if len(alike) > 1 else read_now
        return found


def _binary_partition(headers: Column, name: Column) -> Column:
    return header.big_endian(headers, name, 4)


def _binary_offset(headers: Column, name: Column) -> Column:
    return header.big_endian(headers, name, 8)


def _position(offset: Column) -> Column:
    """Return a valid offset; null for larger numbers, whose high bits would be a generation."""
    return F.when(offset < FIRST_REWOUND, offset)


def _partition_reader(family: LetterFamily) -> Reader:
    return _binary_partition if family.binary else header.number


def _offset_reader(family: LetterFamily) -> Reader:
    return _binary_offset if family.binary else header.number


def _reason(place: int, family: LetterFamily) -> str:
    return family.reasons[place] if place < len(family.reasons) else ""


def _by_place(family: Column, text: Callable[[LetterFamily], str]) -> Column:
    """Return a text of the letter's family; null if it is empty, and for a record that is no dead letter."""
    return F.get(F.array(*(F.lit(text(one) or None).cast("string") for one in FAMILIES)), family)
