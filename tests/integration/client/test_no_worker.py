"""A broker, and no worker: whoever asks is told soon, in one sentence; and who insists is served once one runs (X7)."""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from lapse.doctor import lag, service
from lapse.protocol import topic as names
from lapse.topic_creation import NewTopic
from lapse_client import Admin, AnswerTimeout, Connection, QueueSubscriber, SowClient
from lapse_client.queue.queue import Queue
from lapse_client.session import attendance
from lapse_spark.connection import Connection as ForSpark
from lapse_spark.option import Cluster
from support.kafka.created_topic import create
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.gateway import Door, door
from support.suite import command

pytestmark = pytest.mark.feature("X7")

SILENCE_S = 0.3


def queue(ask: Callable[[Queue], object]) -> Callable[[Deployment, Connection], object]:
    def asked(here: Deployment, by: Connection) -> object:
        with Queue(here.name("orders"), connection=by) as client:
            return ask(client)

    return asked


def topic(ask: Callable[[SowClient], object]) -> Callable[[Deployment, Connection], object]:
    def asked(here: Deployment, by: Connection) -> object:
        with SowClient(here.name("prices"), connection=by) as client:
            return ask(client)

    return asked


ASKED: dict[str, Callable[[Deployment, Connection], object]] = {
    "depth": queue(lambda client: client.depth()),
    "sow": queue(lambda client: client.peek(filter="/a = 1")),
    "acknowledge": queue(lambda client: client.acknowledge(["orders:0:0"])),
    "purge": queue(lambda client: client.purge()),
    "rewind": queue(lambda client: client.rewind("beginning")),
    "subscribe": lambda here, by: QueueSubscriber(here.name("orders"), connection=by).start(),
    "a query": topic(lambda client: list(client.query())),
    "sow_delete": topic(lambda client: client.delete(keys=["a"])),
    "sow_and_subscribe": topic(lambda client: client.sow_and_subscribe().start()),
}


@pytest.fixture(scope="module")
def idle(deploy: Deploy) -> Deployment:
    """A deployment that nobody runs."""
    deployment = deploy({})
    deployment.configure({"orders": {}}, {"prices": {}})
    return deployment.apply()


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(attendance, "_ANSWER_S", SILENCE_S)


def test_it_is_reported_within_5_s() -> None:
    assert attendance.SILENCE_S + attendance._ANSWER_S <= 3.5


@pytest.mark.usefixtures("_soon")
def test_whoever_does_not_insist_is_informed_that_no_worker_answers(idle: Deployment) -> None:
    connection = replace(idle.connection, insists=False)

    def message_of(ask: Callable[[Deployment, Connection], object]) -> str:
        with pytest.raises(AnswerTimeout) as error:
            ask(idle, connection)
        return str(error.value)

    with ThreadPoolExecutor(len(ASKED)) as threads:
        texts = dict(zip(ASKED, threads.map(message_of, ASKED.values()), strict=True))
    for asked, text in texts.items():
        assert f"no answer to {'sow' if asked == 'a query' else asked} from shard 0 within 0.6 s" in text
        assert "Start a worker (`lapse worker`)" in text
        stays = asked in ("acknowledge", "sow_delete")  # a purge or a rewind is not sent to nobody
        assert ("one that runs later carries it out" in text) is stays, asked


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(
    "words",
    [("queue", "peek"), ("queue", "subscriptions"), ("sow", "query"), ("sow", "subscriptions"), ("top", "--json")],
)
def test_commands_that_look_end(idle: Deployment, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.cli.top._PATIENCE_S", SILENCE_S)
    done = idle.lapse(*words, idle.name("prices" if words[0] == "sow" else "orders"))
    assert done.returncode == 1
    (line,) = (done.stdout if words[0] == "top" else done.stderr).splitlines()
    assert "Start a worker (`lapse worker`)" in line


@pytest.mark.usefixtures("_soon")
def test_a_user_whom_workers_do_not_know_gets_a_hint(idle: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no answer, like all who ask while no worker runs. The topics for its answers are there from before."""
    answers = (names.deliveries(idle.name(one), "stranger") for one in ("orders", "prices"))
    create(AdminClient({"bootstrap.servers": idle.servers}), *(NewTopic(one, 1, 1) for one in answers))
    monkeypatch.setattr("lapse.cli.top._PATIENCE_S", SILENCE_S)
    monkeypatch.setattr("lapse.doctor.service._PATIENCE_S", SILENCE_S)
    stranger = idle.environment() | {"LAPSE_USER": "stranger", "LAPSE_SECRET": "s" * 32}
    orders = idle.name("orders")
    for words in (("queue", "peek", orders), ("top", "--json", orders), ("doctor", "--json")):
        done = command.run(*words, "--config", str(idle.config), environment=stranger)
        assert done.returncode == 1
        hint = "Workers do not answer a user who is in no lapse.toml: check that stranger is in theirs"
        assert hint in done.stdout + done.stderr, words


def test_the_doctor_asks_all_at_once_and_tells_of_many_in_one_line(
    idle: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.doctor.service._PATIENCE_S", SILENCE_S)

    def logged() -> list[str]:
        done = idle.lapse("doctor", "--json")
        assert done.returncode == 1
        found = map(json.loads, done.stdout.splitlines())
        return [f"{one['about']}: {one['text']}" for one in found if "no answer" in one["text"]]

    orders, prices = f"queue {idle.name('orders')}", f"SOW topic {idle.name('prices')}"
    assert logged() == [f"{what}: no answer within 0.3 s" for what in (orders, prices)]
    monkeypatch.setattr("lapse.doctor.service._NAMED", 1)
    assert logged() == [f"entities: no answer within 0.3 s from 2 of 2: {orders} …"]


def test_the_doctor_ends_soon() -> None:
    assert service._PATIENCE_S + lag._PATIENCE_S <= 8, "whatever the number of entities: they are asked together"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("monitor out --pattern nowhere", "no topic matches --pattern 'nowhere'; dead-letter topics: "),
        ("archive out --pattern nowhere", "no topic matches --pattern 'nowhere'; dead-letter topics: "),
        ("redrive out --pattern nowhere", "no topic matches --pattern 'nowhere'; dead-letter topics: "),
        ("redrive out --entity nowhere", "there is no queue or SOW topic 'nowhere' on this cluster; there is: "),
        ("redrive out --to nowhere", "there is no topic 'nowhere' on this cluster; there is: "),
        (
            "redrive out --to lapse.redriven",
            "lapse.redriven is a topic that lapse or Kafka writes itself; send letters",
        ),
        ("redrive out --filter ((", "expression, line 1, column 3: the expression ends too early; expected a value: "),
        ("redrive out --filter /a=1", "expression, line 1, column 1: "),
        ("redrive out --field /a:text", "--field '/a:text': expected /path:number, /path:string or /path:boolean"),
        ("redrive out --hook nowhere:f", "--hook nowhere:f: No module named 'nowhere'"),
        ("lives --entity nowhere --bookmark 5", "bookmark '5': expected topic:partition:offset"),
        ("alerts . --topic nowhere", "there is no topic 'nowhere' on this cluster; there is: "),
        ("alerts nowhere", "nowhere: no output of the monitor; run it first: lapse spark monitor nowhere"),
    ],
)
def test_a_spark_job_with_a_wrong_name_ends_before_spark_begins(idle: Deployment, words: str, says: str) -> None:
    done = idle.lapse("spark", *words.split())
    assert done.returncode == 1
    line, *where = done.stderr.splitlines()  # a filter is shown with the place of the mistake
    assert line.startswith(f"Error: {says}")
    assert bool(where) == ("expression" in says)


def test_a_pattern_without_topics_is_only_worth_a_warning_to_a_job_that_goes_on(
    idle: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is what --every makes of it, before Spark begins: the topics may be created later."""
    at_work = Cluster(ForSpark(idle.servers), None, {})
    at_work.await_letters("nowhere", later=True)
    printed = capsys.readouterr().err
    assert printed.startswith("Warning: no topic matches --pattern 'nowhere'; dead-letter topics: dlq.")
    assert printed.endswith(". Those that come later are read\n")
    at_work.await_letters("dlq[.].*", later=True)
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def unattended(idle: Deployment) -> Iterator[Door]:
    """A gateway to it."""
    with door(idle) as opened:
        yield opened


def test_a_request_is_answered_with_what_is_wrong(idle: Deployment, unattended: Door) -> None:
    paths = [unattended.path("orders"), unattended.path("orders", "/messages"), f"/sow/{idle.name('prices')}/records"]
    with ThreadPoolExecutor(len(paths)) as threads:
        answers = list(threads.map(unattended.http.get, paths))
    for answer in answers:
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "no_answer"
        assert "within 3.5 s. Start a worker (`lapse worker`)" in answer.json()["error"]["text"]


@pytest.mark.usefixtures("_soon")
def test_whoever_insists_is_informed_and_served_once_a_worker_runs(
    deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    here = deploy({"late": {}}, definitions="topic").apply()
    caplog.set_level(logging.WARNING, "lapse_client")

    def received() -> bytes | None:
        with here.subscriber("late") as subscriber:
            delivery = subscriber.receive(30)
            assert delivery is not None
            delivery.acknowledge()
            return delivery.value

    def created() -> bool:
        with Admin(here.app_id, connection=here.connection) as admin:
            return admin.create_queue(here.name("new")).changed

    with ThreadPoolExecutor(2) as threads:
        waiting, creating = threads.submit(received), threads.submit(created)
        for command in ("subscribe", "create_queue"):
            answered = f"no answer to {command} from shard 0 within 0.6 s. Start a worker"
            until(lambda answered=answered: answered in caplog.text or creating.done(), "the log tells")
            assert answered in caplog.text
        assert caplog.text.count("Waiting for 30 s in all") == 2
        here.worker()
        here.write("late", "x")
        assert waiting.result(60) == b"x"
        assert creating.result(60)
