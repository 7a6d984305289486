"""A hook of MkDocs: what pages link to outside of docs/ becomes a page of the site, so that no link leaves it.

The links stay as they are on disk, where an editor and a code forge follow them. `docs/celery.md` links to
`../examples/celery_tasks.py`: the site has that program as the page `project/examples/celery_tasks.py.md`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = "docs"
PROJECT = "project"
"""Folder of the site that holds them."""

_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?:(?<=\]\()|(?<=\]: ))([^)\s#:]+)(?=(?:#[^)\s]*)?(?:\)|$))", re.MULTILINE)
_LANGUAGES = {".go": "go", ".java": "java", ".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page links to, and for those that these link to in turn."""
    root = Path(config.config_file_path).parent
    waiting = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        for target in _targets(waiting.pop(), root):
            if target in known or target.startswith(f"{DOCS}/") or not (root / target).is_file():
                continue
            known.add(target)
            files.append(File.generated(config, _site_path(target), content=_content(root / target, target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to where their targets are on the site."""
    del config, files
    here = page.file.src_uri
    origin = here.removeprefix(f"{PROJECT}/") if here.startswith(f"{PROJECT}/") else f"{DOCS}/{here}"

    def moved(link: str) -> str:
        target = _resolved(origin, link)
        return posixpath.relpath(_site_path(target), posixpath.dirname(here) or ".")

    return _linked(markdown, moved)


def _targets(origin: str, root: Path) -> Iterator[str]:
    found: list[str] = []

    def note(link: str) -> str:
        found.append(_resolved(origin, link))
        return link

    _linked((root / origin).read_text(encoding="utf-8"), note)
    return iter(found)


def _linked(text: str, moved: Callable[[str], str]) -> str:
    """Replace each link to a file of the project; what stands in a fence is no link."""
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(lambda hit: moved(hit[1]), part) for part in parts)


def _resolved(origin: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def _site_path(target: str) -> str:
    """Return where a file of the repository is on the site."""
    if target.startswith(f"{DOCS}/"):
        return target.removeprefix(f"{DOCS}/")
    return f"{PROJECT}/{target}" if target.endswith(".md") else f"{PROJECT}/{target}.md"


def _content(file: Path, target: str) -> str:
    text = file.read_text(encoding="utf-8")
    if target.endswith(".md"):
        return text
    return f"# `{target}`\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
