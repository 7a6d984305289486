"""One pinned jar: its expected content, and how it is put into the cache."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lapse.embedded.errors import JarCorrupt


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned file of a Maven repository."""

    path: PurePosixPath
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file name."""
        return self.path.name

    @property
    def coordinate(self) -> str:
        """The Maven coordinate, `group:artifact:version`."""
        version, artifact = self.path.parent.name, self.path.parent.parent.name
        return f"{'.'.join(self.path.parent.parent.parent.parts)}:{artifact}:{version}"

    def verify(self, file: Path) -> None:
        """Check `file` against the pin.

        Raises:
            JarCorrupt: The size or the sha256 differs, or the file cannot be read.
        """
        try:
            size = file.stat().st_size
            if size == self.size_bytes:
                with file.open("rb") as handle:
                    digest = hashlib.file_digest(handle, "sha256").hexdigest()
                if digest == self.sha256:
                    return
                fault = f"its sha256 is {digest}, expected {self.sha256}"
            else:
                fault = f"it has {size} bytes, expected {self.size_bytes}"
        except OSError as error:
            fault = f"it cannot be read: {error.strerror}"
        raise JarCorrupt(
            f"{self.coordinate} at {file} is not the pinned file: {fault}. Delete it and run the command again; if it "
            "comes back the same, whatever stands between here and the Maven repository serves another file."
        )


def place(jar: Jar, source: Path, store: Path) -> None:
    """Verify `source` and move it to its place in `store`. A reader sees the whole file or none.

    Raises:
        JarCorrupt: `source` is not the pinned file.
    """
    jar.verify(source)
    target = store / jar.path
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)  # noqa: PTH105  (says what happens to an existing target)
