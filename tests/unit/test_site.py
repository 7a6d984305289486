"""The documentation as a site: built without a warning, whole in itself, and showing what the pages say."""

from __future__ import annotations

import functools
import html
import json
import os
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from support.programs.browser import OPTIONS
from support.programs.program import program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def build(into: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", into]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )


class Silent(SimpleHTTPRequestHandler):
    """Serves files, and logs no request."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: where a warning is an error."""
    where = tmp_path_factory.mktemp("site")
    built = build(where)
    assert built.returncode == 0, built.stdout + built.stderr
    return where


def article(site: Path, page: Path) -> str:
    """What the site shows of a page."""
    name = page.relative_to(ROOT / "docs").with_suffix("")
    file = site / (name.parent if name.name == "index" else name) / "index.html"
    return file.read_text("utf-8").split("<article", 1)[1].split("</article>")[0]


def count(text: str) -> dict[str, int]:
    """How many lists, tables, headings and examples there are: an example that becomes a paragraph is missed."""
    found = {tag: len(re.findall(rf"<{tag}[ >]", text)) for tag in ("ul", "ol", "li", "table", "h1", "h2", "h3", "h4")}
    return {**found, "examples": len(re.findall(r'<pre[ >]|class="diagram"', text))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_site_shows_a_page_as_a_code_forge_does(site: Path, page: Path) -> None:
    forge = MarkdownIt("commonmark").enable("table").render(page.read_text("utf-8"))
    assert count(article(site, page)) == count(forge)


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]+)|<link[^>]*\shref=\"([^\"]+)")
    for file in site.rglob("*.html"):
        for hit in fetched.finditer(file.read_text("utf-8")):
            assert not re.match(r"(?:https?:)?//", hit[1] or hit[2]), f"{file.relative_to(site)}: {hit[0]}"
    for file in site.rglob("*.css"):
        assert not re.search(r"url\(\"?(?:https?:)?//|@import", file.read_text("utf-8")), file.name


def test_the_search_finds_a_key_a_code_and_a_program(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    places = {
        "lease_period": "configuration/",
        "unknown_subscription": "protocol/",
        "lapse_kombu": "project/examples/celery_tasks",
    }
    for word, where in places.items():
        assert any(word in html.unescape(one["text"]) and one["location"].startswith(where) for one in found), word


@pytest.mark.slow
def test_diagrams_and_search_work_in_a_browser_that_sees_no_other_host(site: Path) -> None:
    # Without the browser or its driver, the pages are compared above; only their scripts are not run.
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = program("chromium", "chromium-browser", "google-chrome")
    serve = functools.partial(Silent, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server, playwright.sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        browser = driver.chromium.launch(executable_path=chromium, args=OPTIONS)
        view = browser.new_page()
        asked: list[str] = []
        view.on("request", lambda request: asked.append(request.url))
        home = f"http://127.0.0.1:{server.server_port}/"
        view.goto(f"{home}queues/")
        playwright.expect(view.locator("div.diagram svg")).to_contain_text("leased", timeout=20_000)
        search, found = view.get_by_role("textbox", name="Search"), view.locator(".md-search-result__item").first
        search.click()
        search.press_sequentially("heartbeat_timeout")  # the theme looks at keys
        playwright.expect(found).to_be_visible(timeout=20_000)
        browser.close()
        server.shutdown()
    assert asked
    assert all(url.startswith((home, "data:")) for url in asked)


def test_programs_that_pages_link_to_are_on_the_site(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "project/examples/fastapi_app.py/index.html").read_text("utf-8"))
    text = (ROOT / "examples/fastapi_app.py").read_text("utf-8")
    assert re.sub(r"\s+", " ", text).strip() in re.sub(r"\s+", " ", html.unescape(shown))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[there](nowhere.md)", "nowhere.md"),
        ("[there](other.md#nothing)", "does not contain an anchor '#nothing'"),
        ("nobody links to the page `forgotten.md`", "forgotten.md"),
    ],
)
def test_a_page_that_leads_nowhere_or_is_forgotten_fails_the_build(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Start\n\n{text}\n")
    (tmp_path / "docs/other.md").write_text("# Other\n")
    if "forgotten" in text:
        (tmp_path / "docs/forgotten.md").write_text("# Forgotten\n")
    config = (ROOT / "mkdocs.yml").read_text("utf-8").replace("website/", f"{ROOT}/website/")
    config = config.split("\nnav:\n")[0] + "\nnav: [index.md, other.md]\n"
    (tmp_path / "mkdocs.yml").write_text(config)
    built = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert built.returncode != 0
    assert why in built.stdout + built.stderr


def test_each_version_has_a_site_and_readers_choose_between_them(tmp_path: Path) -> None:
    def run(*command: str) -> str:
        identity = {
            f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # mike looks for mkdocs there
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={**os.environ, **identity, "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Start\n")
    config = (ROOT / "mkdocs.yml").read_text("utf-8").replace("website/", f"{ROOT}/website/")
    (tmp_path / "mkdocs.yml").write_text(config.split("\nnav:\n")[0])
    run("git", "init", "-q")
    run("git", "commit", "-q", "--allow-empty", "-m", "begin")
    mike = str(Path(sys.executable).with_name("mike"))
    for version in ("0.1", "0.2"):
        run(mike, "deploy", "--update-aliases", version, "latest")
    run(mike, "set-default", "latest")
    versions = json.loads(run("git", "show", "gh-pages:versions.json"))
    assert [(one["version"], one["aliases"]) for one in versions] == [("0.2", ["latest"]), ("0.1", [])]
    assert '"provider": "mike"' in run("git", "show", "gh-pages:0.2/index.html")
