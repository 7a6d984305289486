"""Accessibility of a page by the rules of axe-core 4.14.1, which lies beside this with its licence."""

from pathlib import Path
from typing import Any

_SCRIPT = (Path(__file__).parent / "axe.min.js").read_text("utf-8")
_RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(rule =>
    `${rule.id} (${rule.impact}): ${rule.help}: ` + rule.nodes.map(node => node.html.slice(0, 200)).join(" | "))"""


def faults(page: Any) -> list[str]:
    """What a page of a browser does against the rules: each with the elements that do it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_SCRIPT)  # as a debugger does: the page's own policy forbids scripts within it
    found: list[str] = page.evaluate(_RUN)
    return found
