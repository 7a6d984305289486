"""The Faust application for `faust -A lapse.app worker`; `LAPSE_CONFIG` names the configuration (./lapse.toml)."""

from __future__ import annotations

import os
from pathlib import Path

from lapse.config import load
from lapse.runtime.assembly import make_app

app = make_app(load(Path(os.environ.get("LAPSE_CONFIG", "lapse.toml"))))
