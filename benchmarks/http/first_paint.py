"""Measures how long a browser with an empty cache takes to show a first part of the console's pages.

`python -m benchmarks.http.first_paint` needs Chromium and playwright.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.comparison.contestant import Figures, Skipped, alone
from benchmarks.http.gateway import opened
from benchmarks.instruments.load import create
from benchmarks.instruments.worker import PATIENCE_S, Worker

_PAINTED: Final = """() => {
    const painted = performance.getEntriesByType("paint").find((one) => one.name === "first-contentful-paint");
    return painted ? painted.startTime : null;
}"""
_IDLE_PERCENT: Final = 25.0
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


def run(bootstrap_servers: str, opens: int = 15, letters: int = 20_000, further: int = 0) -> Figures:
    """Open each kind of page `opens` times with a worker, and again after the worker was killed.

    The worker serves `further` empty queues of one partition, too.
    """
    browser_path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise Skipped("playwright is not installed") from None
    if browser_path is None:
        raise Skipped("there is no Chromium on the path")

    name = f"console-{time.time_ns()}"
    entities = f'[queue.{name}]\nexpiration = "enabled"\n[sow.{name}-sow]\n'
    entities += "".join(f"[queue.{name}-{number}]\npartitions = 1\n" for number in range(further))
    figures: Figures = {}
    with Worker(bootstrap_servers, name, entities) as worker:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        with opened(bootstrap_servers) as (address, _), sync_playwright() as driver:
            pages = _pages(address, name, letters, worker)
            worker.until(lambda: worker.process.cpu_percent(1.0) < _IDLE_PERCENT, PATIENCE_S)  # it has all its shards
            browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            _painted_ms(browser, f"{address}/health")  # load the browser itself
            for state in ("", "_without_worker"):
                for kind, path in pages.items():
                    took_ms = [_painted_ms(browser, address + path) for _ in range(opens)]
                    figures[f"{kind}{state}_median_ms"] = statistics.median(took_ms)
                    figures[f"{kind}{state}_longest_ms"] = max(took_ms)
                worker.process.kill()
            browser.close()
    return figures


def _pages(address: str, name: str, letters: int, worker: Worker) -> Mapping[str, str]:
    """Return the path of each kind of page, after making a queue with `letters` dead letters."""
    bookmark = _ask(f"{address}/v1/publish/{name}", {})["bookmark"]
    for first in range(0, letters, 10_000):
        lapsed = [{"value": number, "ttl_ms": 1} for number in range(first, min(letters, first + 10_000))]
        _ask(f"{address}/v1/publish/{name}/batch", {"messages": lapsed})
    worker.until(lambda: _ask(f"{address}/v1/letters/{name}?top_n=1")["count"] == letters, PATIENCE_S)
    return {
        "overview": "/",
        "queue": f"/console/queues/{name}",
        "message": f"/console/queues/{name}/message?bookmark={bookmark}",
        "letters": f"/console/letters/{name}",
        "sow_topic": f"/console/sow/{name}-sow",
    }


def _ask(url: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(url, body, timeout=60) as answer:
        return json.load(answer)


def _painted_ms(browser: Any, url: str) -> float:
    """Return the time from the request to the first paint in a browser with an empty cache, ms."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(url)
        page.wait_for_function(_PAINTED)
        return float(page.evaluate(_PAINTED))
    finally:
        context.close()


if __name__ == "__main__":
    alone(run)
