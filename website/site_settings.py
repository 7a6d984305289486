"""A hook of MkDocs: what mkdocs.yml cannot say about the site."""

from __future__ import annotations

import os
import re

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> None:
    """Make anchors as code forges do; show the choice between versions where there are several."""
    config.mdx_configs["toc"]["slugify"] = anchor
    if os.environ.get("MIKE_DOCS_VERSION"):  # mike builds (`make docs-version`); a plain build has no list of versions
        config.extra["version"] = {"provider": "mike"}


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading, `queuename` for `[queue.<name>]`: one link works on disk and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)
