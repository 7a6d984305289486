"""Builds the C sources along with the package, where there is a C compiler.

Where there is none, workers and clients make an object of each record: the same, for more CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES: Final = (Path("streams/lapse/runtime/kafka/columns.c"), Path("connectors/lapse_client/kafka/record_columns.c"))
FLAGS = ("-std=c99", "-O2", "-fwrapv", "-shared", "-fPIC")


class ColumnsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts each library beside its source.

    With `LAPSE_PURE` set, or without a compiler, the wheel is for any platform.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build them before the files of the wheel are collected."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        for source in SOURCES:
            library = source.with_name(f"lib{source.stem}.so")
            if os.environ.get("LAPSE_PURE") or compiler is None:
                Path(self.root, library).unlink(missing_ok=True)
            elif self._is_built(compiler, Path(self.root, source), Path(self.root, library)):
                build_data["artifacts"].append(library.as_posix())
        if build_data["artifacts"]:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"  # only C's own types cross the border: any Python may load them

    def _is_built(self, compiler: str, source: Path, library: Path) -> bool:
        built_from = f"-DLAPSE_SOURCE={zlib.crc32(source.read_bytes())}LL"
        done = subprocess.run(
            [compiler, *FLAGS, built_from, "-o", str(library), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"{source.name} is not built, records take more CPU: {done.stderr[-500:]}")
        return not done.returncode
