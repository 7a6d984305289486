"""A command whose topic is missing names it, and says what creates it, at once and in one sentence (C52, X7)."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from integration.commands.needed_topics import ALWAYS, AT_LENGTH, KINDS, ROWS
from integration.security.needed_rights import ROWS as CALLS
from integration.security.needed_rights import commands
from lapse_client.session import attendance
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.suite.at_length import cases

pytestmark = pytest.mark.feature("C52", "X7")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wait briefly for answers: no worker runs. test_no_worker.py checks the ordinary times."""
    monkeypatch.setattr(attendance, "SILENCE_S", 0.05)
    monkeypatch.setattr(attendance, "_ANSWER_S", 0.05)
    monkeypatch.setattr("lapse.cli.top._PATIENCE_S", 0.1)
    monkeypatch.setattr("lapse.doctor.service._PATIENCE_S", 0.1)
    monkeypatch.setattr("lapse.doctor.lag._PATIENCE_S", 0.1)
    monkeypatch.chdir(tmp_path)


def lacking(here: Deployment, kind: str, prefix: str) -> str:
    """The topic that the queue or SOW topic of this kind lacks."""
    return KINDS[kind](here.name(prefix + kind), here.app_id)


@pytest.fixture(scope="module")
def incomplete(deploy: Deploy) -> Deployment:
    """For each kind of topic a queue and a SOW topic that lack it, and one of each that lack none."""
    here = deploy({})
    queues = {f"q-{kind}": {} for kind in (*KINDS, "none") if kind != "sow"}
    here.configure(queues, {f"s-{kind}": {} for kind in (*KINDS, "none")}, definitions="topic")
    here.apply()
    missing = missing_of(here)
    admin = AdminClient({"bootstrap.servers": here.servers})
    for future in admin.delete_topics([*missing]).values():
        future.result(30)
    until(lambda: missing.isdisjoint(admin.list_topics(timeout=15).topics), "the topics gone")
    return here


def missing_of(here: Deployment) -> set[str]:
    return {lacking(here, kind, "s-") for kind in KINDS} | {
        lacking(here, kind, "q-") for kind in KINDS if kind != "sow"
    }


def test_every_command_has_a_row_of_the_topics_that_it_needs() -> None:
    assert set(commands()) == set(ROWS)
    assert all(bool(row.needs) != bool(row.why_none) for row in ROWS.values())


@pytest.mark.parametrize(("command", "kind"), cases(ALWAYS, AT_LENGTH))
def test_each_command_names_the_one_topic_that_is_missing(incomplete: Deployment, command: str, kind: str) -> None:
    queue, sow = incomplete.name(f"q-{kind}"), incomplete.name(f"s-{kind}")
    arguments = CALLS[command].arguments.replace(" --force --yes", "")  # which deletes it without a worker
    given = {"q": queue, "s": sow, "new": "", "app": incomplete.app_id, "other": incomplete.servers}
    done = incomplete.lapse(*command.split(), *arguments.format_map(given).split())
    assert done.returncode == 1, done.stdout
    (printed,) = done.stderr.splitlines()
    prefix = "q-" if "{q}" in arguments else "s-"
    missing = ROWS[command].message.format(incomplete.name(prefix + kind)) or lacking(incomplete, kind, prefix)
    assert missing in printed
    assert ROWS[command].mend in printed


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_all_that_is_missing_is_listed(incomplete: Deployment, command: str) -> None:
    done = incomplete.lapse(command)
    assert done.returncode == 1
    assert {one for one in missing_of(incomplete) if one not in done.stdout} == set()
    assert "lapse apply" in done.stdout + done.stderr


def test_a_missing_topic_of_definitions_is_named(deploy: Deploy) -> None:
    """Workers go on with what they serve, so nothing else shows that it is gone."""
    here = deploy({"orders": {}}, definitions="topic").apply()
    name, admin = f"lapse.definitions.{here.app_id}", AdminClient({"bootstrap.servers": here.servers})
    admin.delete_topics([name])[name].result(30)
    until(lambda: name not in admin.list_topics(timeout=15).topics, "the topic gone")
    checked = here.lapse("check")
    assert checked.returncode == 0, "all topics of the entity are there"
    assert f"Warning: {name} is not there, or we may not see it: " in checked.stderr
    shown = here.lapse("definitions")
    assert shown.returncode == 1
    assert shown.stderr.startswith(f"Error: {name} is not there, or we may not see it: ")
    assert "`lapse apply` creates it" in shown.stderr
    assert here.lapse("apply", "--yes").stdout.endswith("Wrote 1 definition.\n")
    assert here.name("orders") in here.lapse("definitions").stdout
