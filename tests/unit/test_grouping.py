"""The processes of a parallel run get the tests group by group, each test once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.suite.grouping import Grouped


class _Process:
    """A process that notes the tests that it gets."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.got: list[int] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.got += places

    def shutdown(self) -> None:
        self.shutting_down = True


def test_each_process_gets_whole_files_as_long_as_there_are_some(tmp_path: Path) -> None:
    names = []
    for number in range(30):
        file = tmp_path / f"test_{number}.py"
        file.write_text("")
        names += [f"{file.name}::test_{test}" for test in range(number % 7 + 1)]
    config: Any = SimpleNamespace(
        rootpath=tmp_path, option=SimpleNamespace(loadscopereorder=False), getvalue=lambda _: ["popen", "popen"]
    )
    log = SimpleNamespace(loadscopesched=lambda *_: None)
    scheduler, processes = Grouped(config, log), [_Process("gw0"), _Process("gw1")]
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, names)
    scheduler.schedule()
    done = [0, 0]
    while scheduler.has_pending:
        assert not (scheduler.tests_finished and scheduler.workqueue)
        for number, process in enumerate(processes):
            if done[number] < len(process.got):
                left = len(process.got) - done[number]
                assert process.shutting_down or left > 2, "it gets more before it has nothing to do"
                scheduler.mark_test_complete(process, process.got[done[number]])
                done[number] += 1
    assert scheduler.tests_finished
    assert sorted(processes[0].got + processes[1].got) == list(range(len(names)))
    files = [{names[place].partition("::")[0] for place in process.got} for process in processes]
    assert not files[0] & files[1]
    assert abs(len(processes[0].got) - len(processes[1].got)) <= 9
