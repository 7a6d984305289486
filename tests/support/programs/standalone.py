"""Runs Spark's own cluster on this machine: a master process and a worker process, as `start-master.sh` does."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyspark

from support.suite import class_archives

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = " ".join(class_archives.QUICK_SPARK)
_PACKAGE = "org.apache.spark.deploy"
_TIMEOUT_S = 120


def quick_executors() -> str:
    """Return Java's flags for the processes of a cluster."""
    return " ".join([QUICK, *class_archives.executors_options()])


def quick_java() -> dict[str, str]:
    """Return this process's environment with flags for a Java that starts quickly but compiles little."""
    return {**os.environ, "JDK_JAVA_OPTIONS": QUICK}


@contextmanager
def standalone(directory: Path, java_home: Path, cores: int = 2) -> Iterator[str]:
    """Start a cluster of one machine with memory for an executor per core. Yield its address, `spark://…`."""
    rpc, page = _free_port(), _free_port()
    master = f"spark://127.0.0.1:{rpc}"
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": quick_executors(),
    }
    commands = [["master.Master", "--host", "127.0.0.1", "--port", str(rpc), "--webui-port", str(page)]]
    room = ["--cores", str(cores), "--memory", f"{600 * cores}m"]
    own = ["--host", "127.0.0.1", *room, "--work-dir", str(directory / "work"), "--webui-port", "0"]
    commands.append(["worker.Worker", *own, master])
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for program, *arguments in commands:
            with (directory / f"{program}.log").open("wb") as log:
                command = [str(SPARK_HOME / "bin" / "spark-class"), f"{_PACKAGE}.{program}", *arguments]
                processes.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
                )
        _await_worker(page, processes, directory)
        yield master
    finally:
        # Executors are in the worker's process group.
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def _await_worker(page: int, processes: list[subprocess.Popen[bytes]], directory: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    alive = 0
    while not alive:
        logs = "\n".join(log.read_text()[-2000:] for log in directory.glob("*.log"))
        assert time.monotonic() < deadline, f"no worker after {_TIMEOUT_S} s\n{logs}"
        assert all(process.poll() is None for process in processes), logs
        time.sleep(0.1)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                alive = orjson.loads(answer.read())["aliveworkers"]
        except (urllib.error.URLError, OSError):
            continue


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
