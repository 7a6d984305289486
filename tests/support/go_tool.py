"""Tools that are written in Go and checked by nobody else: found on the path, or built once into lapse's cache."""

import os
import shutil
import subprocess
from typing import Final

import pytest

from lapse.embedded.cache import cache_dir, locked

_MODULES: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.18.6",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0",
}
_BUILD_S: Final = 900


def go_tool(name: str) -> str:
    """Return the path of a tool; where there is none, and Go is here, its module is fetched and built (minutes)."""
    if found := shutil.which(name):
        return found
    module = _MODULES[name]
    kept = cache_dir() / "tools" / f"{name}-{module.rpartition('@')[2]}"
    with locked(kept.with_name(f".{kept.name}.lock")):
        if kept.exists():
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
