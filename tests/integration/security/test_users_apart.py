"""What a user sees, and what is told of them, does not depend on what others have and do (X4, X7)."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

import support.workers.stern
from lapse.protocol import signature, topic
from lapse.protocol.command import QUEUE_COMMANDS, SOW_COMMANDS
from lapse_client import Delivery
from lapse_gateway.application import OPERATIONS
from lapse_gateway.operation import Operation
from support.kafka.log import Headers, header, until, write
from support.processes.deployment import broker_now_ms
from support.processes.entitled import Entitled
from support.processes.gateway import Door, door

pytestmark = pytest.mark.feature("X4")

QUEUE = {"expiration": "enabled", "lease_period": "10m", "leasing": "strict"}
SOW = {"expiration": "enabled"}
USERS = {
    "alice": {"entitlements": {".*": {"read": True, "publish": True, "filter": "/desk = 'A'"}}},
    "bob": {"entitlements": {".*": {"read": True, "publish": True, "filter": "/desk = 'B'"}}},
    "ops": {"entitlements": {".*": {"read": True, "admin": True}}},
}
OWN, OTHER = b'{"desk":"A"}', b'{"desk":"B"}'
FLOOD = 300
INSTANT = re.compile(rb"\d{13}")
OUTSTANDING = re.compile(rb'(?<="outstanding":)\d+')
FILTERS = [{"filter": text} for text in ("TRUE", "/desk = 'A'", "/desk = 'B'")]


@pytest.fixture(scope="module")
def desks(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entitled]:
    """A worker, and each entity twice: on one of the two there is what alice may not see."""
    deployment = Entitled(kafka, tmp_path_factory.mktemp("desks"), {})
    deployment.users = USERS
    deployment.configure(
        {"shared": QUEUE, "lonely": QUEUE, "flooded": {}}, {"shared-quotes": SOW, "lonely-quotes": SOW}
    )
    program = str(Path(support.workers.stern.__file__))
    deployment.apply().run([program, str(deployment.config), str(deployment.directory / "data")]).wait_for_shards(5)
    flood(deployment)
    yield deployment
    deployment.close()


@pytest.fixture(scope="module")
def gate(desks: Entitled) -> Iterator[Door]:
    """A gateway to all of them."""
    with door(desks) as opened:
        yield opened


def flood(desks: Entitled) -> None:
    """Send commands that are refused: hundreds of alice's, and then one of bob's."""
    commands, at_ms = topic.commands(desks.name("flooded")), broker_now_ms()
    producer = Producer({"bootstrap.servers": desks.servers, "linger.ms": 5})
    for number in range(FLOOD + 1):
        user = "bob" if number == FLOOD else "alice"
        value = b'{"command": "depth", "nonsense": %d}' % number
        stamp = signature.headers(desks.secret(user).encode(), user, commands, 0, at_ms, value)
        producer.produce(commands, value, partition=0, headers=list(stamp))
    assert producer.flush(30) == 0


class Log:
    """Writes each record in a transaction, and leaves gaps of the same size for those of others where it is lonely."""

    def __init__(self, desks: Entitled, stem: str) -> None:
        self.name = desks.name(stem)
        self.is_lonely = stem.startswith("lonely")
        self._producer = Producer({"bootstrap.servers": desks.servers, "transactional.id": self.name})
        self._producer.init_transactions(30)
        self._next = 0

    def put(self, value: bytes | None, headers: Headers = (), key: bytes | None = None, others: bool = True) -> int:
        """Write a record, or leave a gap. Return its offset."""
        self._producer.begin_transaction()
        self._producer.produce(self.name, value, key, 0, headers=list(headers))
        if others and self.is_lonely:
            self._producer.flush(30)
            self._producer.abort_transaction(30)
        else:
            self._producer.commit_transaction(30)
        self._next += 2  # a marker follows each of them
        return self._next - 2


def answers_to(
    desks: Entitled, stem: str, asked: Sequence[tuple[str, dict[str, object]]]
) -> list[list[tuple[bytes, ...]]]:
    """All that alice gets for each command: kind, key and value, without instants and the name of the entity.

    Nor have answers about her own subscription its deliveries so far: commands that come together are one step, or
    several, and it gets her own message between them.
    """
    name, at_ms = desks.name(stem), broker_now_ms()
    tail = desks.tail(topic.deliveries(name, "alice"), from_end=True)
    commands, secret = topic.commands(name), desks.secret("alice").encode()
    for number, (command, fields) in enumerate(asked):
        text = json.dumps({"command": command, "id": f"{command}-{number}", **fields}).replace("{}", name)
        stamp = signature.headers(secret, "alice", commands, 0, at_ms, text.encode())
        write(desks.servers, commands, [text.encode()], headers=stamp)

    def found(number: int, command: str) -> list[tuple[bytes, ...]]:
        ident = f"{command}-{number}".encode()
        mine = [one for one in tail.records if header(one, "lapse-command-id") == ident]
        values = [INSTANT.sub(b"N", one.value() or b"") for one in mine]
        if "subscribe" in command:
            values = [OUTSTANDING.sub(b"N", value) for value in values]
        return [
            (header(one, "lapse-kind") or b"", one.key() or b"", value) for one, value in zip(mine, values, strict=True)
        ]

    def answered(_: object) -> bool:
        kinds = [header(one, "lapse-kind") for one in tail.records]
        return kinds.count(b"answer") >= len(asked)

    tail.wait_for(answered, "an answer to each", 60)
    return [
        [tuple(part.replace(name.encode(), b"it") for part in one) for one in found(number, command)]
        for number, (command, _) in enumerate(asked)
    ]


def compare(desks: Entitled, stem: str, asked: Sequence[tuple[str, dict[str, object]]]) -> None:
    """Ask the same where something is hidden, and where it never was."""
    hidden, never = (answers_to(desks, f"{where}{stem}", asked) for where in ("shared", "lonely"))
    for (command, fields), one, other in zip(asked, hidden, never, strict=True):
        assert one == other, (command, fields)
        assert one, (command, fields)


Asked = tuple[str, str, dict[str, object]]
"""What is asked over HTTP: the method, the path, and the parameters or the body. In them, @ is the entity."""


def compare_over_http(gate: Door, stem: str, asked: Sequence[Asked]) -> None:
    """Ask the same over HTTP where something is hidden, and where it never was."""
    desks, delivered = gate.deployment, list[list[tuple[int, bytes]]]()
    assert isinstance(desks, Entitled)
    for where in ("shared", "lonely"):
        name, answers = desks.name(f"{where}{stem}"), list[tuple[int, bytes]]()
        for method, path, fields in asked:
            whole = json.loads(json.dumps(fields).replace("@", name))
            content = {"params": whole} if method == "GET" else {"json": whole}
            auth = "alice", desks.secret("alice")
            answer = gate.http.request(method, path.replace("@", name), auth=auth, **content)
            answers.append((answer.status_code, INSTANT.sub(b"N", answer.content.replace(name.encode(), b"it"))))
        delivered.append(answers)
    for one, hidden, never in zip(asked, *delivered, strict=True):
        assert hidden == never, one
        assert hidden[0] != 404, one


def forms_of(path: str, name: str, bookmarks: Sequence[str]) -> list[dict[str, str]]:
    """Return what a page of the console, or a form, is sent: the same for every entity but for its name."""
    words = path.rpartition("/")[2]
    chosen: list[dict[str, str]] = [{}, *FILTERS]
    named = [{"bookmark": f"{name}:{one}"} for one in bookmarks]
    if words in ("message", "now", "life"):
        return named
    if "/letters/" in path:
        letters = [{"letter": f"dlq.{name}:0:{at}", "payload": "{}"} for at in range(2)]
        return letters if "/edit" in path else [{"since": "all"}, {"since": "hour", "filter": "/desk = 'B'"}]
    if "/rewind" in path:
        targets = [{"to": "beginning"}, *({"to": one["bookmark"]} for one in named)]
        return [{"id": f"r-{at}", **one} for at, one in enumerate(targets)]
    if "/scheduled" in path:
        return [*named, *chosen[1:], {"key": "scheduled"}, {}]
    if words in ("act", "confirm"):
        purges = [{"action": "purge", **one} for one in (*chosen, {"leased": "true"})]
        return [*({"action": "expire", **one} for one in named), *purges, {"action": "pause"}, {"action": "resume"}]
    return chosen


MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\d{2}:\d{2}:\d{2}[\d.]*|\b[\d.]+ (?:ms|s|min|h)\b|\d{13}|[0-9a-f]{32}"
)
"""What the time of a request changes in a page, and the id that a form names a rewind by."""


def compare_in_the_console(gate: Door, kind: str, stem: str, bookmarks: Sequence[str]) -> None:
    """Open every page of the console, and send every form, where something is hidden, and where it never was."""
    desks = gate.deployment
    assert isinstance(desks, Entitled)
    pages = [one for one in OPERATIONS if "/console/" in one.path and f"{{{kind}}}" in one.path]
    pages += [one for one in OPERATIONS if "{entity}" in one.path and "/console/" in one.path]
    assert len(pages) > 10

    def shown(operation: Operation, name: str, fields: dict[str, str]) -> tuple[int, str]:
        path = re.sub(r"\{\w+\}", name, operation.path)
        sent = {"params": fields} if operation.method == "GET" else {"data": fields}
        if operation.method == "GET":
            known = {one.name for one in operation.parameters}
            sent = {"params": {key: value for key, value in fields.items() if key in known}}
        auth = "alice", desks.secret("alice")
        lines = list[str]()
        with gate.http.stream(operation.method, f"{gate.address}{path}", auth=auth, **sent) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if line == "event: group-end":  # what follows a topic does not end; all current records are told
                    break
        return answer.status_code, MOMENT.sub("N", "\n".join(lines).replace(name, "it"))

    hidden, never = (desks.name(f"{where}{stem}") for where in ("shared", "lonely"))
    for operation in sorted(pages, key=lambda one: one.method):
        forms = zip(*(forms_of(operation.path, name, bookmarks) for name in (hidden, never)), strict=True)
        for there, elsewhere in forms:
            one, other = shown(operation, hidden, there), shown(operation, never, elsewhere)
            for _ in range(10 if operation.method == "GET" else 0):
                if one == other:  # a page is painted without the figures that it does not get at once
                    break
                one, other = shown(operation, hidden, there), shown(operation, never, elsewhere)
            assert one == other, (operation.method, operation.path, there)
            assert one[0] in (200, 403), (operation.method, operation.path, one)

    def rows_of(path: str) -> list[list[str]]:
        """Return what a page says of each, found by name: the broker has entities of other tests, too."""
        auth, rows = ("alice", desks.secret("alice")), []
        for name in (hidden, never):
            text = gate.http.get(f"{gate.address}{path}", params={"find": name}, auth=auth).text
            found = re.findall(rf"<tr[^>]*{name}[^>]*>.*?</tr>|<li[^>]*>[^<]*{name}.*?</li>", text, re.DOTALL)
            rows.append([MOMENT.sub("N", row.replace(name, "it")) for row in found])
        return rows

    def compare_rows(path: str) -> None:
        until(lambda: all(rows_of(path)), f"{path} shows both", 60.0)  # the gateway asks for them meanwhile
        one, other = rows_of(path)
        assert one == other, path

    compare_rows("/")
    compare_rows("/console/live")


def fill(desks: Entitled, stem: str, open_until_end: ExitStack) -> dict[str, int]:
    """Bring a message of others into each state. Return the offset of each, and of alice's own message."""
    later = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + 600_000))]
    places: dict[str, int] = {}
    log = Log(desks, stem)
    bob = open_until_end.enter_context(desks.subscriber_of("bob", stem, 1, name="holder"))

    def taken() -> list[Delivery]:
        delivery = None if log.is_lonely else bob.receive(30)
        assert log.is_lonely or delivery is not None
        return [delivery] if delivery is not None else []

    places["delayed"] = log.put(OTHER)
    for one in taken():
        one.cancel(delay_ms=600_000)
    places["settled"] = log.put(OTHER)
    for one in taken():
        one.acknowledge()
    bob.flush()
    places["leased"] = log.put(OTHER)
    taken()
    places["available"] = log.put(OTHER)
    places["scheduled"] = log.put(OTHER, later)
    places["expired"] = log.put(OTHER, [("lapse-ttl-ms", b"1")])
    places["invalid"] = log.put(OTHER, [("lapse-ttl-ms", b"soon")])
    places["own"] = log.put(OWN, others=False)
    wanted = {"available": 1} if log.is_lonely else {"available": 2, "leased": 1, "delayed": 1, "scheduled": 1}
    with desks.queue_of("ops", stem) as ops:
        until(lambda: wanted.items() <= ops.depth().items(), "all arrived, and the expired one is gone")
    return places


@pytest.mark.feature("Q8", "Q15", "Q17", "C82", "L5")
def test_a_hidden_message_answers_every_command_as_one_that_never_was(desks: Entitled, gate: Door) -> None:
    """Over Kafka, and over HTTP."""
    with ExitStack() as open_until_end:
        places, same = (fill(desks, stem, open_until_end) for stem in ("shared", "lonely"))
        assert places == same
        desks.letters("shared", 2)
        compare_in_the_console(gate, "queue", "", [f"0:{offset}" for state, offset in places.items() if state != "own"])
        ask_all_over_http(gate, places)
        ask_all_of_a_queue(desks, places)


def ask_all_over_http(gate: Door, places: dict[str, int]) -> None:
    bookmarks = [f"@:0:{offset}" for state, offset in places.items() if state != "own"]
    lists = [*([one] for one in bookmarks), [f"@:0:0-{places['invalid']}"]]
    settled = [{"receipts": one} for one in lists] + [{"filter": "/desk = 'B'"}]
    asked: list[Asked] = [
        *(("GET", "/queues/@", one) for one in ({}, *FILTERS)),
        *(("GET", "/queues/@/messages", one) for one in ({}, *FILTERS)),
        *(("GET", "/queues/@/messages", {"state": state}) for state in "available leased scheduled dying".split()),
        *(("GET", "/explain", {"bookmark": one}) for one in bookmarks),
        *(("GET", "/explain", {"bookmark": one, "entity": "@"}) for one in bookmarks),
        *(("GET", f"/{what}/@", {}) for what in ("letters", "figures")),
        ("GET", "/queues/@/subscriptions", {}),
        *(("POST", f"/queues/@/{how}", one) for how in ("renew", "cancel", "expire", "acknowledge") for one in settled),
        *(("POST", f"/queues/@/{how}", {}) for how in ("pause", "resume", "purge", "rewind")),
        ("POST", "/letters/@/redrive", {}),
    ]
    compare_over_http(gate, "", asked)


def ask_all_of_a_queue(desks: Entitled, places: dict[str, int]) -> None:
    one_by_one = [[f"{{}}:0:{offset}"] for state, offset in places.items() if state != "own"]
    lists = [*one_by_one, [f"{{}}:0:{places['leased']}#1"], [f"{{}}:0:0-{places['invalid']}"]]
    named = [{"bookmarks": one} for one in lists]
    whole = {"bookmarks": [f"{{}}:0:0-{places['own']}"]}
    states = [{"state": one} for one in "available leased delayed transferring scheduled held dying".split()]
    settled = [{"subscription": "s", **one} for one in (*named, *FILTERS[2:], whole, *FILTERS[:1])]
    forms: dict[str, list[dict[str, object]]] = {
        "sow": [{}, *named, whole, *FILTERS, *states],
        "depth": [{}, *FILTERS],
        "subscriptions": [{}],
        **{
            command: [{"transfer": "t", "to": "elsewhere", "subscription": "s", **named[0]}, {}]
            for command in sorted(QUEUE_COMMANDS - {"tick"})
            if command.startswith("transfer") or command in ("pause", "resume", "purge", "rewind", "delete")
        },
        **dict.fromkeys(("renew", "cancel", "expire", "acknowledge"), settled),
        "subscribe": [{"subscription": "s", "max_backlog": 5}, *({"subscription": "s", **one} for one in FILTERS)],
        "heartbeat": [{"subscription": "s"}],
        "unsubscribe": [{"subscription": "s"}],
    }
    assert set(forms) == QUEUE_COMMANDS - {"tick"}
    compare(desks, "", [(command, form) for command, some in forms.items() for form in some])


def records_in_every_state(desks: Entitled) -> dict[str, int]:
    """Put records into both SOW topics, one in each state; return their offsets by state."""
    later = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + 600_000))]
    places: dict[str, int] = {}
    for stem in ("shared-quotes", "lonely-quotes"):
        log = Log(desks, stem)
        places["there"] = log.put(OTHER, key=b"there")
        places["scheduled"] = log.put(OTHER, later, key=b"scheduled")
        log.put(OTHER, key=b"both")
        places["both"] = log.put(OTHER, later, key=b"both")
        log.put(OTHER, key=b"deleted")
        places["deleted"] = log.put(None, key=b"deleted")
        places["expired"] = log.put(OTHER, [("lapse-ttl-ms", b"1")], key=b"expired")
        places["invalid"] = log.put(OTHER, [("lapse-ttl-ms", b"soon")], key=b"invalid")
        places["own"] = log.put(OWN, key=b"own", others=False)
        with desks.sow_of("ops", stem) as ops:
            keys = {b"own"} if log.is_lonely else {b"own", b"there", b"both"}
            until(lambda q=ops, k=keys: {one.key for one in q.query()} == k, "all arrived, and the expired one is gone")
            assert len(ops.scheduled()) == (0 if log.is_lonely else 2)
    return places


@pytest.mark.feature("S3", "S5", "S6", "C82", "L5")
def test_a_hidden_record_answers_every_command_as_one_that_never_was(desks: Entitled, gate: Door) -> None:
    """Over Kafka, and over HTTP."""
    places = records_in_every_state(desks)
    keys = [[state] for state in places if state != "own"]
    asked: list[Asked] = [
        ("GET", "/sow/@", {}),
        *(("GET", "/sow/@/records", one) for one in ({}, *FILTERS, *({"key": one} for one in keys))),
        *(("GET", "/sow/@/scheduled", one) for one in ({}, *FILTERS)),
        *(("POST", "/sow/@/withdraw", {"bookmarks": [f"@:0:{offset}"]}) for offset in places.values()),
        *(("POST", "/sow/@/withdraw", one) for one in FILTERS),
        *(("POST", "/sow/@/delete", {"keys": one}) for one in keys),
        ("POST", "/sow/@/delete", FILTERS[2]),
        *(("GET", "/explain", {"bookmark": f"@:0:{offset}", "entity": "@"}) for offset in places.values()),
        *(("GET", path, {}) for path in ("/sow/@/subscriptions", "/letters/@", "/figures/@")),
    ]
    compare_in_the_console(gate, "topic", "-quotes", [f"0:{at}" for state, at in places.items() if state != "own"])
    compare_over_http(gate, "-quotes", asked)
    bookmarks = [[f"{{}}:0:{offset}"] for state, offset in places.items() if state != "own"]
    bookmarks.append([f"{{}}:0:0-{places['invalid']}"])
    named = [*({"bookmarks": one} for one in bookmarks), *FILTERS[2:]]
    subscribes = sorted(one for one in SOW_COMMANDS if one.endswith("subscribe") and "un" not in one)
    forms: dict[str, list[dict[str, object]]] = {
        "sow": [
            *({}, {"order_by": "/desk", "top_n": 5}, {"state": "scheduled"}, *FILTERS),
            *({"keys": one} for one in (*keys, ["own", "there", "never"])),
            *({"state": "scheduled", **one} for one in FILTERS),
        ],
        "depth": [{}],
        "subscriptions": [{}],
        "delete": [{}],
        "sow_delete": [
            *({"state": "scheduled", **one} for one in named),
            *named,
            *({"keys": one} for one in keys),
            *({"state": "scheduled", **one} for one in FILTERS[:1]),
        ],
        # Each under its own id: one that replaces another refuses its query, if that is not finished yet.
        **{name: [{"subscription": f"{name} {at}", **FILTERS[at]} for at in range(3)] for name in subscribes},
        "heartbeat": [{"subscription": "s"}],
        "unsubscribe": [{"subscription": "s"}],
    }
    forms["subscribe"].append({"subscription": "s"})
    forms["sow_delete"] += [{"keys": ["own", "there", "never"]}, *FILTERS[:1]]
    assert set(forms) == SOW_COMMANDS - {"tick"}
    compare(desks, "-quotes", [(command, form) for command, some in forms.items() for form in some])


@pytest.mark.feature("X7")
def test_of_refusals_each_user_has_some_lines_and_then_a_count(desks: Entitled) -> None:
    """Alice sent hundreds when the worker had started, and bob one."""
    name, worker = desks.name("flooded"), desks.workers[0]

    def lines(user: str) -> list[str]:
        return [one for one in worker.text.splitlines() if f"{name}," in one and f"of '{user}' refused" in one]

    until(lambda: lines("bob"), "bob's refusal is logged, though alice had so many")
    assert len(lines("alice")) == 10
    assert "further ones are only counted for a minute" in lines("alice")[-1]
    assert "further ones" not in lines("bob")[0]
    assert "field nonsense: unknown" in lines("bob")[0]
    count = f"{FLOOD - 10} more commands of 'alice' were refused within "
    until(lambda: any(name in one and count in one for one in worker.text.splitlines()), "the others are counted")
    assert "more commands of 'bob'" not in worker.text
