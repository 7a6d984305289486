"""`on_expire`: what cannot be called is refused before anything runs, with file and line."""

from pathlib import Path

import pytest

from lapse.config import ConfigError, load

pytestmark = pytest.mark.feature("L15", "X7")


def config(directory: Path, name: str, module: str = "") -> Path:
    path = directory / "lapse.toml"
    path.write_text(f'[queue.orders]\nexpiration = "5s"\non_expire = "{name}"\n', "utf-8")
    if module:
        (directory / f"{name.partition(':')[0]}.py").write_text(module, "utf-8")
    return path


def test_a_module_beside_the_configuration_is_found(tmp_path: Path):
    loaded = load(config(tmp_path, "beside_one:told", "def told(message, more=1): ..."))
    assert loaded.queue["orders"].on_expire == "beside_one:told"
    assert loaded.queue["orders"].on_expire_timeout == 10_000


@pytest.mark.parametrize(
    ("name", "module", "words"),
    [
        ("nowhere_at_all:told", "", ("nowhere_at_all", "cannot be imported", "beside the configuration file")),
        ("broken_rule:told", "raise OSError('no disk')", ("cannot be imported", "no disk")),
        ("empty_rule:told", "x = 1", ("has no told",)),
        ("number_rule:told", "told = 1", ("is no function",)),
        ("async_rule:told", "async def told(message): ...", ("coroutine",)),
        ("none_rule:told", "def told(): ...", ("one argument",)),
        ("os:system", "", ("is Python's own",)),
        ("subprocess:run", "", ("is Python's own",)),
        ("class_rule:Ruled", "class Ruled:\n    def __init__(self, message): ...", ("is no rule",)),
        ("no colon", "", ("package.module:function",)),
    ],
)
def test_what_cannot_be_called_is_a_configuration_error(tmp_path: Path, name: str, module: str, words: tuple[str, ...]):
    with pytest.raises(ConfigError) as caught:
        load(config(tmp_path, name, module))
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/lapse.toml:3: queue.orders.on_expire: ")
    for word in words:
        assert word in text
