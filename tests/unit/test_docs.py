"""The documentation says what the code does, and every example in it is accepted."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import commands
from lapse.cli import COMMANDS, main
from lapse.config import loads
from lapse.config.entity_config import EntityConfig, QueueConfig, SowConfig
from lapse.config.root import SecurityConfig, WorkerConfig
from lapse.config.topic import TopicConfig
from lapse.config.user import EntitlementConfig, UserConfig
from lapse.core.entitlement import QUEUE_RIGHTS, SOW_RIGHTS, Right
from lapse.core.error_code import ErrorCode
from lapse.core.queue.settlement.settlement import Result
from lapse.core.reason import Reason
from lapse.protocol import command, header, schema
from lapse.protocol.command import QUEUE_COMMANDS, SOW_COMMANDS
from lapse.protocol.event import EventKind
from lapse.runtime.authorization.command_authorizer import CAUSES
from support.pages.shown_command import examples, words_of_commands

ROOT = Path(__file__).parents[2]
DOCS = {
    path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES = {
    **{f"docs/{name}": text for name, text in DOCS.items()},
    **{path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")},
}
COMMON = set(EntityConfig.model_fields)


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of the same level or above."""
    level = heading.split(" ")[0]
    start = DOCS[page].index(f"\n{heading}\n")
    rest = DOCS[page][start + len(heading) + 2 :]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """The tables' rows by what stands in backticks in the first column; several may share a row."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = cells[1:]
    return found


def blocks(language: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{name}-{number}")
        for name, text in PAGES.items()
        for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    ]


# Configuration


@pytest.mark.parametrize(
    ("heading", "table", "model", "left_out"),
    [
        ("## `[lapse]`", "lapse", WorkerConfig, set()),
        ("## `[security]`", "security", SecurityConfig, set()),
        ("## Queues and SOW topics", "queue.q", EntityConfig, set()),
        ("## `[queue.<name>]`", "queue.q", QueueConfig, COMMON),
        ("## `[sow.<name>]`", "sow.s", SowConfig, COMMON),
    ],
    ids=["lapse", "security", "common", "queue", "sow"],
)
def test_every_key_is_documented_with_its_default(
    heading: str, table: str, model: type[BaseModel], left_out: set[str]
) -> None:
    documented = rows(section("configuration.md", heading))
    assert set(documented) == set(model.model_fields) - left_out
    for key, (default, *_) in documented.items():
        if default == "–":
            assert model.model_fields[key].get_default() is None, key
            continue
        read: Any = loads(f"[{table}]\n{key} = {default.strip('`')}")
        for part in table.split("."):
            read = read[part] if isinstance(read, dict) else getattr(read, part)
        assert getattr(read, key) == model.model_fields[key].get_default(), key


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## `[users.<name>]`", UserConfig),
        ("### `[users.<name>.entitlements.<entity>]`", EntitlementConfig),
        ("## `[topic.<name>]`", TopicConfig),
    ],
)
def test_every_key_of_users_and_topics_is_documented(heading: str, model: type[BaseModel]) -> None:
    text = DOCS["configuration.md"].split(f"\n{heading}\n")[1].split("\n#")[0]
    shown = {None: "–", False: "`false`", PydanticUndefined: "required"}
    defaults = {name: field.get_default() for name, field in model.model_fields.items()}
    expected = {name: "`{}`" if default == {} else shown[default] for name, default in defaults.items()}
    assert {name: cells[0] for name, cells in rows(text).items()} == expected


def test_every_command_is_under_the_right_that_it_takes() -> None:
    kinds = (QUEUE_RIGHTS, SOW_RIGHTS)
    documented = rows(section("security.md", "## Rights"))
    for right in Right:
        for cell, needed in zip(documented[right.value], kinds, strict=True):
            assert set(re.findall(r"`([a-z_]+)`", cell)) >= {
                name for name, any_of in needed.items() if any_of == {right}
            } - {name for name in needed if name.startswith("transfer")}


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_of_a_denial_is_documented(cause: str) -> None:
    assert f"`{cause}`" in rows(section("operations.md", "### Figures for Prometheus"))["lapse_denied_commands"][0]


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_configuration_shown_is_accepted(block: str) -> None:
    loads(block)


def test_the_example_at_the_root_is_accepted() -> None:
    config = loads((ROOT / "lapse.toml").read_text(encoding="utf-8"))
    assert set(config.queue) == {"orders"}
    assert set(config.sow) == {"prices"}


def test_the_mistake_shown_is_the_one_of_the_page() -> None:
    (shown,) = re.findall(r"^ +(lapse\.toml:\d+: .*)$", DOCS["configuration.md"], re.MULTILINE)
    line, misspelt = re.match(r"lapse\.toml:(\d+): queue\.orders\.(\w+):", shown).groups()
    text = "\n" * (int(line) - 2) + f'[queue.orders]\n{misspelt} = "30s"'
    with pytest.raises(Exception, match=re.escape(shown)):
        loads(text)


# Protocol


@pytest.mark.parametrize(
    ("heading", "commands"), [("### To a queue", QUEUE_COMMANDS), ("### To a SOW topic", SOW_COMMANDS)]
)
def test_every_command_is_documented(heading: str, commands: frozenset[str]) -> None:
    assert set(rows(section("protocol.md", heading))) == commands - {"tick"}


@pytest.mark.parametrize(
    ("heading", "name"),
    [("## Commands", "command"), ("## Answers", "answer"), ("## Events", "event"), ("### By reference", "reference")],
)
def test_every_field_is_documented(heading: str, name: str) -> None:
    documented = rows(section("protocol.md", heading))
    missing = {field["name"] for field in json.loads(schema.text(name))["fields"]} - set(documented)
    assert not missing


def test_every_header_is_documented() -> None:
    names = {value for name, value in vars(header).items() if name.isupper() and isinstance(value, str)}
    assert not {name for name in names | set(header.ORIGINAL_NAMES) if f"`{name}`" not in DOCS["protocol.md"]}


@pytest.mark.feature("X2")
def test_every_code_is_documented_with_what_to_do() -> None:
    documented = rows(section("protocol.md", "### Codes"))
    assert [ErrorCode(name) for name in documented] == list(ErrorCode)
    assert all(len(cells) == 2 and all(cells) for cells in documented.values())


def _counted(tree: ast.AST) -> Iterator[str]:
    """The keys that code puts into the figures of answers, as far as they stand in it."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.keyword(arg="counts", value=ast.Dict(keys=keys))
                | ast.Assign(
                    targets=[ast.Name(id="counts") | ast.Subscript(slice=ast.Constant(value="counts"))],
                    value=ast.Dict(keys=keys),
                )
                | ast.AugAssign(target=ast.Name(id="counts"), value=ast.Dict(keys=keys))
            ):
                yield from (one.value for one in keys if isinstance(one, ast.Constant))
            case ast.Dict(keys=[*names], values=[*values]):
                inner = [two for one, two in zip(names, values, strict=True) if getattr(one, "value", "") == "counts"]
                for dict_ in inner:
                    yield from (one.value for one in getattr(dict_, "keys", ()) if isinstance(one, ast.Constant))
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id="counts"), slice=ast.Constant(value=str(key)))]):
                yield key


@pytest.mark.feature("X2")
def test_every_figure_of_an_answer_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", section("protocol.md", "### Counts")))
    commands = (ROOT / "streams" / "lapse" / "core").rglob("*command*.py")
    counted = {key for path in commands for key in _counted(ast.parse(path.read_text("utf-8")))}
    assert {"transferring", "max_backlog", "advancing"} <= counted
    assert counted - documented == set()


@pytest.mark.parametrize("kind", EventKind)
def test_every_event_is_documented(kind: EventKind) -> None:
    assert f"`{kind}`" in section("protocol.md", "## Events")


@pytest.mark.parametrize("block", blocks("json"))
def test_every_command_shown_is_accepted(block: str) -> None:
    for line in block.splitlines():
        read, encoding = command.decode(line.encode())
        assert encoding == "json"
        assert read.command in QUEUE_COMMANDS | SOW_COMMANDS


# Queues


@pytest.mark.parametrize("result", Result)
def test_every_result_of_a_settlement_is_documented(result: Result) -> None:
    assert result in rows(section("queues.md", "### What is answered"))


def test_the_schema_of_answers_lists_every_result() -> None:
    described = re.search(
        r'"name": "result".*"doc": "([^"]*)"', (ROOT / "schemas/answer.avsc").read_text(encoding="utf-8")
    )
    assert described is not None
    assert set(re.findall(r"\w+", described[1])) - {"or"} == {one.value for one in Result}


def test_the_schema_of_commands_lists_every_command() -> None:
    text = (ROOT / "schemas/command.avsc").read_text(encoding="utf-8")
    of_queues, _, rest = text.partition("Queues: ")[2].partition("SOW topics: ")
    of_topics = rest.partition("The definitions: ")[0]
    assert set(re.findall(r"\w+", of_queues)) == QUEUE_COMMANDS - {"tick"}
    assert set(re.findall(r"\w+", of_topics)) == SOW_COMMANDS - {"tick"}


def test_the_client_lists_every_result_of_its_settlements() -> None:
    row = next(line for line in DOCS["client.md"].splitlines() if line.startswith('| `settle("cancel"'))
    of_transfers = {Result.LEASED, Result.ADVANCING}
    assert [one.value for one in Result if one not in of_transfers and f"`{one.value}`" not in row] == []


def test_every_reason_is_documented_in_order() -> None:
    assert [Reason(name) for name in rows(section("queues.md", "## Why a message leaves"))] == list(Reason)


# Everything


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, made as on GitHub."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def test_what_is_missing_has_every_goal_that_is_missed() -> None:
    parts = re.split(r"^## ", DOCS["figures.md"], flags=re.MULTILINE)[1:]
    missed = {anchor for part in parts if "**missed**" in part for anchor in anchors(f"## {part.splitlines()[0]}")}
    assert missed
    assert missed <= set(re.findall(r"\(figures\.md#([\w-]+)\)", DOCS["limits.md"]))


@pytest.mark.parametrize("kind", ["Tutorials", "Recipes", "Reference", "Explanation"])
def test_the_four_kinds_of_pages_are_kept_apart(kind: str) -> None:
    """The index and the navigation of the site have the same pages under each kind."""
    nav = re.split(r"^  - (\w+):$", (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1], flags=re.MULTILINE)
    here = dict(zip(nav[1::2], nav[2::2], strict=True))[kind]
    navigation = {name.replace("project/", "../") for name in re.findall(r": (\S+\.md)$", here, re.MULTILINE)}
    indexed = re.split(r"^## (\w+).*$", DOCS["index.md"], flags=re.MULTILINE)
    text = next(text for name, text in zip(indexed[1::2], indexed[2::2], strict=True) if name == kind)
    assert set(re.findall(r"\]\(([^)#]+\.md)\)", text)) == navigation


MODULE = re.compile(r"`((?:core|runtime|lapse_client|lapse_spark|lapse_gateway|lapse_kombu)(?:\.[a-z_]+)+)`")
"""A module, or what is in one, as pages name it: those of `lapse` without the package."""
LOGGERS = {"lapse_gateway.audit"}


def module_exists(name: str) -> bool:
    """Whether there is a module or package, or something of that name in one."""
    for base in (ROOT / "streams", ROOT / "streams" / "lapse", ROOT / "connectors"):
        path = base.joinpath(*name.split("."))
        if path.is_dir() or path.with_suffix(".py").exists():
            return True
        for home in (path.parent.with_suffix(".py"), path.parent / "__init__.py"):
            if home.exists() and re.search(rf"\b{path.name}\b", home.read_text(encoding="utf-8")):
                return True
    return False


def test_the_map_names_every_package() -> None:
    packages = section("architecture.md", "## The packages").split("```")[1]
    named = set(re.findall(r"(?<![\w/])(?:(?:queue|sow)/)?([a-z_]+)/", packages))
    sources = [ROOT / "streams" / "lapse", ROOT / "connectors"]
    there = {path.parent.name for source in sources for path in source.rglob("__init__.py")}
    assert there - named == {"lapse"}  # the root itself


@pytest.mark.parametrize("page", [name for name in PAGES if MODULE.search(PAGES[name]) and name != "CHANGELOG.md"])
def test_modules_that_pages_name_exist(page: str) -> None:
    named = set(MODULE.findall(PAGES[page])) - LOGGERS
    assert {name for name in named if not module_exists(name)} == set()


def test_every_subcommand_is_in_the_overview() -> None:
    assert set(COMMANDS) <= {name.split()[1] for name in rows(section("operations.md", "## Commands"))}


def test_the_reference_of_commands_is_what_the_commands_say() -> None:
    assert DOCS["commands.md"] == commands.page(), "python tests/commands.py > docs/commands.md"


def test_every_option_says_what_it_is_for() -> None:
    silent = re.findall(r"^\| `(-[^`]+)`.*\|  \|$", DOCS["commands.md"], re.MULTILINE)
    assert not silent
    assert len(re.findall(r"^\| `-", DOCS["commands.md"], re.MULTILINE)) > 200


def test_every_figure_is_documented() -> None:
    source = "".join((ROOT / f"streams/lapse/runtime/{name}.py").read_text("utf-8") for name in ("metrics", "health"))
    documented = {
        name for name in rows(section("operations.md", "### Figures for Prometheus")) if name.startswith("lapse_")
    }
    assert documented == set(re.findall(r'"(lapse_[a-z_]+)"', source))
    source = (ROOT / "connectors/lapse_gateway/metrics.py").read_text("utf-8")
    assert set(rows(section("gateway.md", "## Figures"))) == set(re.findall(r'"(lapse_[a-z_]+)"', source))


def test_the_readme_leads_to_every_page_by_the_index() -> None:
    assert "(docs/index.md)" in PAGES["README.md"]
    linked = set(re.findall(r"\]\(([^)#]+\.md)", DOCS["index.md"]))
    assert not {name for name in DOCS if name not in linked} - {"index.md"}


def test_the_readme_fits_two_screens() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 100


def test_the_readme_repeats_figures_as_they_are() -> None:
    shown = set(re.findall(r"\d+,\d{3}|\d[\d.]* ×", PAGES["README.md"].split("\n## How fast\n")[1].split("\n## ")[0]))
    assert len(shown) > 5
    assert not {figure for figure in shown if figure not in DOCS["figures.md"]}


# Commands


def shown_commands() -> list[Any]:
    """Every `lapse …` in an example."""
    found: dict[tuple[str, ...], str] = {}
    for page, text in PAGES.items():
        if page == "docs/commands.md":
            continue  # it has usages, and is printed from the commands
        for line in "\n".join(examples(text)).splitlines():
            for words in words_of_commands(line):
                if words[:1] == ["lapse"] and re.fullmatch("[a-z-]+", " ".join(words[1:2])):
                    found.setdefault(tuple(words[1:]), page)
    return [pytest.param(words, id=f"{page}: {' '.join(words)}") for words, page in found.items()]


@pytest.mark.parametrize("words", shown_commands())
def test_every_command_line_shown_is_accepted(words: tuple[str, ...]) -> None:
    rest = list(words)
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group):
        name = rest.pop(0)
        below = found.get_command(context, name)
        assert below is not None, name
        found, context = below, click.Context(below, parent=context, info_name=name)
    found.make_parser(context).parse_args(args=rest)


def test_every_command_named_in_a_text_exists() -> None:
    """In pages, in alerts and dashboards, and in what commands and the console say."""
    suffixes = {".html", ".json", ".py", ".toml", ".yaml", ".yml"}
    files = [path for name in ("connectors", "deploy", "docker", "streams") for path in (ROOT / name).rglob("*")]
    texts = dict(PAGES) | {str(path): path.read_text("utf-8") for path in files if path.suffix in suffixes}
    context, unknown = click.Context(main), []
    for place, text in texts.items():
        for name, below in re.findall(r"`lapse ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", text):
            command = main.get_command(context, name)
            group = command if isinstance(command, click.Group) else None
            if command is None or (group is not None and below and group.get_command(context, below) is None):
                unknown.append(f"{place}: lapse {name} {below}".rstrip())
    assert unknown == ["docs/operations.md: lapse qu"]  # which the tab key completes


def test_command_lines_are_found() -> None:
    found = {parameter.values[0] for parameter in shown_commands()}
    assert len(found) > 80
    assert ("queue", "subscribe", "parcels", "--count", "3") in found
    assert list(words_of_commands("seq 2 | lapse publish 'a b' > out.txt # why")) == [
        ["seq", "2"],
        ["lapse", "publish", "a b"],
        ["out.txt"],
    ]
