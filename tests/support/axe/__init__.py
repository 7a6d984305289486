"""Checks the accessibility of a page with axe-core 4.14.1, which is in this directory with its licence."""

from pathlib import Path
from typing import Any

_SCRIPT = (Path(__file__).parent / "axe.min.js").read_text("utf-8")
_RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(rule =>
    `${rule.id} (${rule.impact}): ${rule.help}: ` + rule.nodes.map(node => node.html.slice(0, 200)).join(" | "))"""


def faults(page: Any) -> list[str]:
    """Return the rules that a page breaks, each with the elements that break it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_SCRIPT)  # evaluated, as the page's own policy forbids inline scripts
    found: list[str] = page.evaluate(_RUN)
    return found
