"""Renders the Helm chart of `deploy/`, and runs its containers' commands on this machine as the kubelet would."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from support.programs.helm import helm_program

CHART: Final = Path(__file__).parents[3] / "deploy/helm/lapse"
KUBERNETES: Final = "1.30.0"
"""The version of Kubernetes that Helm renders for, as it asks no cluster."""

Manifest = Mapping[str, Any]


def helm(command: Sequence[str], *arguments: str, values: Mapping[str, Any] | None = None) -> tuple[int, str, str]:
    """Run Helm on the chart, with values on standard input. Return the exit code, the output and the errors."""
    given = [] if values is None else ["--values", "-"]
    done = subprocess.run(
        [helm_program(), *command, str(CHART), "--kube-version", KUBERNETES, *given, *arguments],
        input="" if values is None else yaml.safe_dump(dict(values)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def rendered(values: Mapping[str, Any] | None = None, release: str = "lapse") -> str:
    """Render what would be installed, as YAML."""
    code, text, errors = helm(["template", release], values=values)
    assert code == 0, errors
    return text


def manifests(text: str) -> dict[tuple[str, str], Manifest]:
    """Return the objects of a rendered chart by kind and name."""
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}
    assert found
    return found


class Container:
    """A container of a rendered pod, run as a process with directories of this machine instead of its mounts.

    Args:
        pod: the pod's specification.
        config: the text of the mounted `lapse.toml`.
        root: the directory that replaces the container's `/`.
        replaced: replacements for texts of the command line that only make sense in a cluster.
    """

    def __init__(self, pod: Manifest, config: str, root: Path, replaced: Mapping[str, str] | None = None) -> None:
        self.pod = pod
        self.container = pod["containers"][0]
        self._root = root
        self._replaced = {
            **{path: str(root / path[1:]) for path in ("/etc/lapse", "/var/lib/lapse")},
            **(replaced or {}),
        }
        mounts = {mount["mountPath"]: mount["name"] for mount in self.container["volumeMounts"]}
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert set(mounts.values()) <= {*volumes, "data"}
        for path in mounts:
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            if path.endswith("lapse.toml"):
                (root / path[1:]).write_text(self._here(config), "utf-8")
            else:
                (root / path[1:]).mkdir(exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def _here(self, text: str) -> str:
        for there, here in self._replaced.items():
            text = text.replace(there, here)
        return text

    @property
    def command(self) -> list[str]:
        """The command line: the image's entry point, `lapse`, and the container's arguments."""
        return [sys.executable, "-m", "lapse", *map(self._here, self.container["args"])]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the container and of the image, without those of this process."""
        variables = {one["name"]: self._here(one["value"]) for one in self.container["env"] if "value" in one}
        return {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **variables}

    @property
    def log(self) -> Path:
        """The file with the container's output."""
        return self._root / "log"

    def directory(self, path: str) -> Path:
        """Return the directory here that replaces one of the container."""
        return self._root / path[1:]

    def run(self) -> "subprocess.Popen[bytes]":
        """Start the process."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self._root / self.container["workingDir"][1:],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def terminate(self) -> int:
        """Send SIGTERM, as Kubernetes does, and wait for at most the grace period. Return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(self.pod["terminationGracePeriodSeconds"])

    def probe(self, kind: str) -> httpx.Response | None:
        """Send the request of a probe. Return None if no answer came in time."""
        probe = self.container[kind]
        (port,) = (one["containerPort"] for one in self.container["ports"] if one["name"] == probe["httpGet"]["port"])
        try:
            return httpx.get(f"http://127.0.0.1:{port}{probe['httpGet']['path']}", timeout=probe["timeoutSeconds"])
        except httpx.TransportError:
            return None

    def await_probe(self, kind: str, status: int = 200) -> httpx.Response:
        """Repeat a probe until it gets a status, for at most as long as Kubernetes would."""
        probe = self.container[kind]
        deadline = time.monotonic() + max(60, probe["periodSeconds"] * probe["failureThreshold"])
        while (found := self.probe(kind)) is None or found.status_code != status:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, (kind, found and found.text, self.log.read_text()[-3000:])
            time.sleep(0.2)
        return found

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)
