"""Only the pinned files reach a class path, whatever lies in caches or comes over the network."""

import hashlib
import threading
from pathlib import Path, PurePosixPath

import pytest

from lapse.embedded import download, jars
from lapse.embedded.errors import EmbeddedError, JarCorrupt, JarUnavailable
from lapse.embedded.jar import Jar
from lapse.embedded.jars import DELTA, KAFKA, SPARK

CONTENT = b"a jar, for all that matters here"
PATH = "org/example/thing/1.0/thing-1.0.jar"


@pytest.fixture
def jar() -> Jar:
    return Jar(PurePosixPath(PATH), len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jar: Jar) -> Path:
    """An empty cache, an empty Maven repository, and a pin file `example` with one jar."""
    pins = tmp_path / "pins"
    pins.mkdir()
    (pins / "example.sha256").write_text(f"{jar.sha256} {jar.size_bytes} {jar.path}\n")
    monkeypatch.setattr(jars, "_PINS", pins)
    monkeypatch.setattr(download, "_ATTEMPTS", 2)
    monkeypatch.setattr(download.time, "sleep", lambda _seconds: None)
    monkeypatch.setenv("LAPSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
    monkeypatch.setenv("LAPSE_CHECKED_JARS", "")
    return tmp_path / "cache" / "jars"


class Network:
    """A source that serves a content, or raises, and counts."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, _jar: Jar, directory: Path, arrived: download.Bytes) -> Path:
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        if isinstance(answer, Exception):
            raise answer
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(answer)
        arrived(len(answer))
        return directory / "file"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    served = Network(CONTENT)
    monkeypatch.setattr(download, "from_maven", served)
    return served


@pytest.mark.parametrize(
    ("name", "count", "root"),
    [
        (KAFKA, 46, "kafka_2.13-4.3.0.jar"),
        (SPARK, 5, "kafka-clients-3.9.0.jar"),
        (DELTA, 2, "delta-spark_2.13-4.0.0.jar"),
    ],
)
def test_pin_files_are_complete(name: str, count: int, root: str) -> None:
    pinned = jars.pins(name)
    assert len(pinned) == len({jar.path for jar in pinned}) == count
    assert root in {jar.name for jar in pinned}
    assert all(jar.size_bytes > 0 and len(jar.sha256) == 64 and jar.name.endswith(".jar") for jar in pinned)


def test_coordinate_comes_from_the_path(jar: Jar) -> None:
    assert jar.coordinate == "org.example:thing:1.0"
    assert "org.apache.kafka:kafka_2.13:4.3.0" in {jar.coordinate for jar in jars.pins(KAFKA)}


def test_unknown_set_and_broken_line_are_named(store: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"no set of jars named 'nope'; there are: example"):
        jars.pins("nope")
    (jars._PINS / "broken.sha256").write_text("abc 12 x.jar\n")
    with pytest.raises(EmbeddedError, match=r"broken\.sha256, line 1: expected sha256, size and path"):
        jars.pins("broken")


def test_download_is_verified_and_kept(store: Path, network: Network) -> None:
    assert jars.jar_files("example") == [store / PATH]
    assert (store / PATH).read_bytes() == CONTENT
    jars.jar_files("example")
    assert network.calls == 1
    assert sorted(path.name for path in store.iterdir()) == [".lock", "org"], "nothing half is left behind"


def test_truncated_file_in_the_cache_is_fetched_again(store: Path, network: Network) -> None:
    (store / PATH).parent.mkdir(parents=True)
    (store / PATH).write_bytes(CONTENT[:5])
    jars.jar_files("example")
    assert (store / PATH).read_bytes() == CONTENT
    assert network.calls == 1


def test_a_cached_file_is_checked_by_content_once_for_each_tree_of_processes(
    store: Path, network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jars.jar_files("example")
    (store / PATH).write_bytes(CONTENT[::-1])  # of the same size
    jars.jar_files("example")
    assert network.calls == 1, "the tree has checked it"
    monkeypatch.delenv("LAPSE_CHECKED_JARS")  # another tree
    jars.jar_files("example")
    assert (store / PATH).read_bytes() == CONTENT
    assert network.calls == 2
    assert "is not the pinned file" in caplog.text
    monkeypatch.setenv("LAPSE_CHECKED_JARS", "example /another/cache")
    (store / PATH).write_bytes(CONTENT[::-1])
    jars.jar_files("example")
    assert network.calls == 3, "another cache says nothing of this one"


def test_a_full_cache_need_not_be_writable(store: Path, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.jar_files("example")
    monkeypatch.delenv("LAPSE_CHECKED_JARS")
    monkeypatch.setattr(jars, "locked", lambda _path: pytest.fail("it locked, which takes a write"))
    assert jars.jar_files("example") == [store / PATH]


def test_corrupt_download_is_refused(store: Path, network: Network) -> None:
    network.answers = [CONTENT[::-1]]
    with pytest.raises(JarCorrupt, match=r"org\.example:thing:1\.0 .* its sha256 is .*, expected .* Delete it"):
        jars.jar_files("example")
    assert not (store / PATH).exists()


def test_short_download_is_tried_again(store: Path, network: Network) -> None:
    network.answers = [CONTENT[:-1], CONTENT]
    jars.jar_files("example")
    assert (store / PATH).read_bytes() == CONTENT
    assert network.calls == 2


@pytest.mark.parametrize("fault", [OSError("no route to host"), RuntimeError("not found in remote repositories")])
def test_unreachable_network_says_what_to_do(store: Path, network: Network, fault: Exception) -> None:
    network.answers = [fault]
    with pytest.raises(JarUnavailable) as caught:
        jars.jar_files("example")
    assert "org.example:thing:1.0 could not be downloaded in 2 attempts" in str(caught.value)
    assert str(fault) in str(caught.value)
    assert f"copy the file to {store / PATH}" in str(caught.value)


def test_maven_repository_is_used_when_it_is_right(store: Path, network: Network, tmp_path: Path) -> None:
    (tmp_path / "m2" / PATH).parent.mkdir(parents=True)
    (tmp_path / "m2" / PATH).write_bytes(CONTENT)
    assert jars.jar_files("example")[0].read_bytes() == CONTENT
    assert network.calls == 0
    assert (tmp_path / "m2" / PATH).exists(), "it is copied, not taken"


@pytest.mark.parametrize("content", [b"", CONTENT[:3], CONTENT[::-1]], ids=["empty", "half", "another"])
def test_half_filled_maven_repository_is_passed_over(
    store: Path, network: Network, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "m2" / PATH).parent.mkdir(parents=True)
    (tmp_path / "m2" / PATH).write_bytes(content)
    assert jars.jar_files("example")[0].read_bytes() == CONTENT
    assert network.calls == 1


def test_full_cache_needs_no_network(store: Path, network: Network) -> None:
    network.answers = [AssertionError("asked the network")]
    (store / PATH).parent.mkdir(parents=True)
    (store / PATH).write_bytes(CONTENT)
    assert jars.jar_files("example") == [store / PATH]


def test_parallel_runs_fetch_once(store: Path, network: Network) -> None:
    threads = [threading.Thread(target=jars.jar_files, args=("example",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (store / PATH).read_bytes() == CONTENT
    assert network.calls == 1


def test_unusable_cache_is_named(
    store: Path, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAPSE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(EmbeddedError, match=r"The jar cache .* cannot be written.*LAPSE_CACHE_DIR"):
        jars.jar_files("example")


def test_mirror_is_asked_instead_of_the_public_repository(
    jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jgo.maven import PythonResolver

    seen: list[dict[str, str]] = []

    def note(_resolver: PythonResolver, artifact: object) -> Path:
        seen.append(artifact.context.remote_repos)  # type: ignore[attr-defined]
        return tmp_path

    monkeypatch.setattr(PythonResolver, "download", note)
    download.from_maven(jar, tmp_path, lambda _count: None)
    monkeypatch.setenv("LAPSE_MAVEN_REPOSITORY", "http://mirror.example/maven/")
    download.from_maven(jar, tmp_path, lambda _count: None)
    assert list(seen[0]) == ["central"]
    assert seen[1] == {"mirror": "http://mirror.example/maven"}
