"""The Helm chart: valid objects for any values, settings that fit each other, and faults told in a sentence."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lapse.config import load
from support.programs.chart import CHART, KUBERNETES, Manifest, helm, manifests, rendered
from support.programs.helm import helm_program
from support.programs.kubernetes import faults
from support.programs.program import run
from support.suite import command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_000)]  # where no package has Helm, it is built at the first run

ROOT = Path(__file__).parents[3]

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "pull"}],
    "kafka": {"bootstrapServers": "a:9093,b:9093", "password": 'se"cret', "clientProperties": "a=1\nb=2\n"},
    "lapse": {"command_schema_id": 1_000_000, "answer_schema_id": 7, "standby": True, "session_timeout": "10s"},
    "worker": {
        "replicas": 4,
        "volume": {"storageClassName": "fast"},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "kafka", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    },
    "gateway": {
        "replicas": 2,
        "readOnly": True,
        "extraArgs": ["--rate", "50"],
        "ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "tls", "annotations": {"a": "b"}},
    },
    "spark": {
        "storageClassName": "fast",
        "jobs": {name: {"enabled": True} for name in ("monitor", "archive", "ledger")},
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "keda": {"enabled": True},
    "extraEnv": [{"name": "LAPSE_WORKER_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "worker"}}}],
    "extraEnvFrom": [{"secretRef": {"name": "users"}}],
    "extraVolumes": [{"name": "certificates", "secret": {"secretName": "tls"}}],
    "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/tls"}],
}
LITTLE: dict[str, Any] = {
    "apply": {"enabled": False},
    "gateway": {"enabled": False},
    "kafka": {"existingSecret": "mine", "existingSecretHasClientProperties": True},
    "worker": {"disruptionBudget": {"enabled": False}},
    "config": "",
}
VALUES = {"default": None, "everything": EVERYTHING, "little": LITTLE}


def pods(found: dict[tuple[str, str], Manifest]) -> dict[str, Manifest]:
    """The specifications of all pods, by what makes them."""
    made: dict[str, Manifest] = {}
    for (kind, name), one in found.items():
        if kind in ("StatefulSet", "Deployment", "Job"):
            made[f"{kind} {name}"] = one["spec"]["template"]["spec"]
        elif kind == "CronJob":
            made[f"{kind} {name}"] = one["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return made


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_what_is_rendered_is_what_kubernetes_takes(values: dict[str, Any] | None, tmp_path: Path) -> None:
    """With schemas of Kubernetes 1.27, KEDA 2.21 and Prometheus operator 0.85, and nothing that they do not know."""
    code, printed, errors = helm(["lint", "--strict"], values=values)
    assert code == 0, printed + errors
    text = rendered(values)
    assert faults(text) == []
    assert len(manifests(text)) == sum(one is not None for one in yaml.safe_load_all(text)), "a name is there twice"


@pytest.mark.parametrize(
    ("is_there", "instead", "fault"),
    [
        ("terminationGracePeriodSeconds", "gracePeriodSeconds", "'gracePeriodSeconds' was unexpected"),
        ("runAsNonRoot: true", "runAsNonRoot: 1", "1 is not of type 'boolean'"),
        ("kind: StatefulSet", "kind: StatelessSet", "no schema of apps/v1"),
    ],
)
def test_a_fault_would_be_found(is_there: str, instead: str, fault: str) -> None:
    assert any(fault in one for one in faults(rendered().replace(is_there, instead)))


def test_a_key_that_is_there_twice_would_be_found() -> None:
    with pytest.raises(yaml.YAMLError, match="a key is there twice"):
        faults("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nkind: Secret\n")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_pod_is_locked_up_and_has_what_it_mounts(values: dict[str, Any] | None) -> None:
    for name, pod in pods(manifests(rendered(values))).items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"], name
        volumes = {volume["name"] for volume in pod["volumes"]}
        if name.startswith("StatefulSet"):
            volumes.add("data")
        for container in containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, name
            assert container["resources"]["requests"], name
            # A probe that waits less than the worker itself would take a slow answer for none.
            probes = [probe for key, probe in container.items() if key.endswith("Probe")]
            assert all(probe["timeoutSeconds"] > 5 for probe in probes), name


def test_every_container_runs_a_command_that_there_is(tmp_path: Path) -> None:
    """Behind all of its arguments `--help` is asked for: an option that is not known is refused before."""
    found = pods(manifests(rendered(EVERYTHING)))
    assert len(found) == 6
    for name, pod in found.items():
        for container in containers(pod):
            done = command.run(*container["args"], "--help", environment={})
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"


def test_java_is_at_home_where_it_may_write() -> None:
    """It goes by the list of users and not by HOME; Spark writes there."""
    for name, pod in pods(manifests(rendered(EVERYTHING))).items():
        for container in containers(pod):
            answer = {one["name"]: one.get("value") for one in container["env"]}
            assert answer["HOME"] in {mount["mountPath"] for mount in container["volumeMounts"]}
            java = answer.get("JAVA_TOOL_OPTIONS")
            assert java == (f"-Duser.home={answer['HOME']}" if name.startswith("CronJob") else None)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_lapse_toml_is_what_the_chart_needs(values: dict[str, Any] | None, tmp_path: Path) -> None:
    found = manifests(rendered(values))
    text = found["ConfigMap", "lapse"]["data"]["lapse.toml"]
    (tmp_path / "lapse.toml").write_text(text, "utf-8")
    config = load(tmp_path / "lapse.toml").lapse
    worker = pods(found)["StatefulSet lapse-worker"]["containers"][0]
    assert config.metrics_host == "0.0.0.0"  # the kubelet asks from outside of the container
    assert [port["containerPort"] for port in worker["ports"]] == [config.metrics_port]
    assert config.data_dir in {mount["mountPath"] for mount in worker["volumeMounts"]}
    assert tomllib.loads(text)["lapse"].items() >= ((values or {}).get("lapse") or {}).items()
    if ("ConfigMap", "lapse-apply") in found:
        assert found["ConfigMap", "lapse-apply"]["data"] == found["ConfigMap", "lapse"]["data"]


def test_nothing_that_hangs_or_ends_holds_up_others() -> None:
    found = manifests(rendered(EVERYTHING))
    jobs = [one["spec"] for (kind, _), one in found.items() if kind == "CronJob"]
    assert jobs
    for job in jobs:  # where a run hung for good, no other one would ever begin
        assert job["concurrencyPolicy"] == "Forbid"
        assert 0 < job["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 86_400
    budgets = [one["spec"] for (kind, _), one in found.items() if kind == "PodDisruptionBudget"]
    assert len(budgets) == 2
    # While the brokers are away no pod is ready: a node can be drained all the same.
    assert {budget["unhealthyPodEvictionPolicy"] for budget in budgets} == {"AlwaysAllow"}
    pod = found["Deployment", "lapse-gateway"]["spec"]["template"]["spec"]
    (_, drains) = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] == 30 + int(drains)


def test_selectors_find_what_they_are_for() -> None:
    found = manifests(rendered(EVERYTHING))
    workers, gateways = found["StatefulSet", "lapse-worker"], found["Deployment", "lapse-gateway"]
    labels = {
        kind: one["spec"]["template"]["metadata"]["labels"].items() for kind, one in (("w", workers), ("g", gateways))
    }
    for of, name in (("w", ("Service", "lapse-workers")), ("g", ("Service", "lapse-gateway"))):
        assert found[name]["spec"]["selector"].items() <= labels[of]
        assert not found[name]["spec"]["selector"].items() <= labels["g" if of == "w" else "w"]
    for of, name in (("w", ("PodDisruptionBudget", "lapse-worker")), ("g", ("PodDisruptionBudget", "lapse-gateway"))):
        assert found[name]["spec"]["selector"]["matchLabels"].items() <= labels[of]
    assert workers["spec"]["serviceName"] == "lapse-workers"
    watched = found["ServiceMonitor", "lapse-workers"]["spec"]
    assert watched["selector"]["matchLabels"].items() <= found["Service", "lapse-workers"]["metadata"]["labels"].items()
    # Its value becomes the label `job`, by which the alerts know workers.
    job = found["Service", "lapse-workers"]["metadata"]["labels"][watched["jobLabel"]]
    assert re.findall(r"\bjob=(\S+?)}", (ROOT / "deploy/prometheus/lapse-alerts.yml").read_text("utf-8")) == [
        f'"{job}"'
    ]
    of_gateway = found["ServiceMonitor", "lapse-gateway"]["spec"]["selector"]["matchLabels"].items()
    assert of_gateway <= found["Service", "lapse-gateway"]["metadata"]["labels"].items()
    scaled = found["ScaledObject", "lapse-worker"]["spec"]
    assert (scaled["scaleTargetRef"]["kind"], scaled["scaleTargetRef"]["name"]) == ("StatefulSet", "lapse-worker")
    assert "replicas" not in workers["spec"]  # KEDA's figure counts; an upgrade must not set it back
    (figures,) = (one for one in gateways["spec"]["template"]["spec"]["containers"][0]["args"] if "figures" in one)
    assert figures == "--figures=http://lapse-workers:9464/metrics"


def test_the_alerts_are_those_of_deploy_prometheus() -> None:
    rule = manifests(rendered(EVERYTHING))["PrometheusRule", "lapse"]
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/lapse-alerts.yml").read_text("utf-8"))


def test_a_secret_is_where_the_pods_look_for_it() -> None:
    for values, own in ((EVERYTHING, True), (LITTLE, False)):
        found = manifests(rendered(values))
        kept = {name for kind, name in found if kind == "Secret"}
        assert kept == ({"lapse-kafka", "lapse-kafka-apply"} if own else set())
        for name, pod in pods(found).items():
            (file,) = (volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "kafka")
            assert file == ("mine" if not own else "lapse-kafka-apply" if name.startswith("Job") else "lapse-kafka")
            environment = {one["name"]: one for one in containers(pod)[0]["env"]}
            assert environment["LAPSE_SASL_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == file
            assert environment["LAPSE_KAFKA_CONFIG"]["value"] == "/etc/lapse/kafka/client.properties"
            text = yaml.safe_dump(pod)
            assert "cret" not in text.replace("secret", "").replace("Secret", "")
    assert not {kind for kind, _ in manifests(rendered())} & {"Secret"}


def test_a_changed_configuration_restarts_workers_and_gateway() -> None:
    def noted(config: str) -> list[str]:
        found = manifests(rendered({"config": config}))
        made = [found["StatefulSet", "lapse-worker"], found["Deployment", "lapse-gateway"]]
        return [one["spec"]["template"]["metadata"]["annotations"]["lapse/config"] for one in made]

    assert noted("[queue.a]\n") == noted("[queue.a]\n")
    assert set(noted("[queue.a]\n")).isdisjoint(noted("[queue.b]\n"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"worker": {"replica": 3}}, "'replica' not allowed"),
        ({"worker": {"livenessProbe": {"timeoutSeconds": 5}}}, "'/worker/livenessProbe/timeoutSeconds': minimum"),
        ({"config": '[lapse]\napp_id = "a"\n'}, "config has a table [lapse]: write its keys below the value lapse"),
        ({"lapse": {"metrics_port": 1}}, "lapse.metrics_port: the chart sets it; take it out"),
        ({"spark": {"jobs": {"mine": {"enabled": True, "schedule": "@daily", "storage": "1Gi"}}}}, "'steps'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: dict[str, Any], sentence: str) -> None:
    code, _, errors = helm(["template", "lapse"], values=values)
    assert code != 0
    assert sentence in errors


def test_the_image_runs_as_the_user_of_the_chart_and_has_its_version() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    dockerfile = (ROOT / "docker/Dockerfile").read_text("utf-8")
    user, group = values["podSecurityContext"]["runAsUser"], values["podSecurityContext"]["runAsGroup"]
    assert f"--gid {group} lapse" in dockerfile
    assert f"--uid {user}" in dockerfile
    assert f"USER {user}:{group}" in dockerfile  # by number: runAsNonRoot does not know names
    assert 'ENTRYPOINT ["lapse"]' in dockerfile
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_what_the_pages_show_is_accepted() -> None:
    """Objects by their schemas, and values by the chart's."""
    shown = [
        block
        for page in ("docs/deployment.md", "docs/recipes/kubernetes-keda.md")
        for block in re.findall(r"^```yaml\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ]
    objects = [block for block in shown if block.startswith("apiVersion")]
    assert (len(objects), len(shown)) == (1, 4)
    for text in (*objects, *(rendered(yaml.safe_load(block)) for block in shown if block not in objects)):
        assert faults(text) == []


def test_the_commands_of_the_page_fit_the_chart(tmp_path: Path) -> None:
    """Without a cluster: Helm takes the arguments and the values, and kubectl names what the release has."""
    page = (ROOT / "docs/deployment.md").read_text("utf-8")
    values = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "my-values.yaml").write_text(values, "utf-8")
    lines = re.findall(r"^ {4}helm (?:install|upgrade) (.+)$", page, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        words = [word for word in line.replace("deploy/helm/lapse", str(CHART)).split() if word != "--create-namespace"]
        run(helm_program(), "template", *words, "--kube-version", KUBERNETES, cwd=tmp_path)
    found = manifests(rendered(yaml.safe_load(values)))
    named = re.findall(r"^ {4}kubectl (?:exec|scale statefulset) ([\w-]+)", page, re.MULTILINE)
    assert [re.sub(r"-\d+$", "", name) for name in named] == ["lapse-worker", "lapse-worker"]
    assert ("StatefulSet", "lapse-worker") in found
