"""Builds `columns.c` along with the package, where there is a C compiler.

Where there is none, workers make an object of each record: the same, for more CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("streams/lapse/runtime/kafka/columns.c")
LIBRARY = Path("streams/lapse/runtime/kafka/libcolumns.so")
FLAGS = ("-std=c99", "-O2", "-fwrapv", "-shared", "-fPIC")


class ColumnsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the library beside its source.

    With `LAPSE_PURE` set, or without a compiler, the wheel is for any platform.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it before the files of the wheel are collected."""
        library = Path(self.root, LIBRARY)
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if os.environ.get("LAPSE_PURE") or compiler is None:
            library.unlink(missing_ok=True)
            return
        source = Path(self.root, SOURCE)
        built_from = f"-DLAPSE_SOURCE={zlib.crc32(source.read_bytes())}LL"
        done = subprocess.run(
            [compiler, *FLAGS, built_from, "-o", str(library), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"columns.c is not built, workers take more CPU: {done.stderr[-500:]}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # only C's own types cross the border: any Python may load it
