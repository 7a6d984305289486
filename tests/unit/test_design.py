"""The console, the demo's page, reports and simulations have one design: `design.css` alone has colours and type."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from lapse_gateway.console import page
from lapse_spark.report import Report

pytestmark = pytest.mark.feature("Q15")

SOURCES = [
    path
    for root in ("lapse", "lapse_gateway", "lapse_spark")
    for path in Path(str(files(root))).rglob("*")
    if path.suffix in (".py", ".html", ".css", ".js") and ".min." not in path.name
]
DESIGN = files("lapse").joinpath("design.css").read_text("utf-8")
OWN_LOOKS = re.compile(r"#[0-9a-fA-F]{3,8}\b(?=[^{]*})|rgba?\(|prefers-color-scheme|font-family|sans-serif|monospace")


def test_every_page_begins_with_the_design() -> None:
    assert page._FILES["console.css"].content.decode().startswith(DESIGN)
    assert f"<style>{DESIGN}" in Report("a page").html()
    assert [path.name for path in SOURCES if "<style" in path.read_text("utf-8")] == ["report.py"], "no third one"


def test_no_page_has_colours_or_type_of_its_own() -> None:
    sheets = {path.name: path.read_text("utf-8") for path in SOURCES if path.suffix == ".css"}
    assert sheets.keys() == {"design.css", "console.css", "report.css"}
    assert OWN_LOOKS.search(sheets.pop("design.css"))
    assert {name: OWN_LOOKS.findall(text) for name, text in sheets.items()} == {"console.css": [], "report.css": []}


def test_pages_use_only_names_that_the_design_has() -> None:
    """Else a browser silently takes another colour."""
    given = {*re.findall(r"(--[a-z0-9-]+):", DESIGN), "--state"}
    for path in SOURCES:
        assert {*re.findall(r"var\((--[a-z0-9-]+)", path.read_text("utf-8"))} <= given, path
