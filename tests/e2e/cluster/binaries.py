"""Where the programs of the test cluster are; `make e2e-components` puts them there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder outside the tree that keeps what is built for these tests."""
    named = os.environ.get("TOPOALLOC_E2E_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "topoalloc-e2e"


def binary(name: str) -> Path:
    """A program that was built, that the environment of this Python has, or that the system has, in this order."""
    for folder in (cache_folder() / "bin", Path(sys.executable).parent):
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is missing; `make e2e-components` builds what can be built and names the rest")
    return Path(found)
