"""Builds the library of topoalloc/sharing/shim into the wheel, and the program that looks after it in a container.

Without a C compiler the wheel is made without them, and the agent then says that shares are not enforced.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIM = Path("topoalloc/sharing/shim")
LIBRARY = SHIM / "libtopoalloc-vcuda.so"
VERIFY = SHIM / "topoalloc-verify"


class ShimHook(BuildHookInterface):  # type: ignore[type-arg] # hatchling's type parameter is of no use here
    """Called for wheels; an editable installation takes what `make shim` made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        lacking = "" if shutil.which(compiler[0]) else compiler[0]
        if not any((root / SHIM).glob("*.[cS]")):  # as in the image's layer of dependencies, which has no code yet
            lacking = "sources"
        if lacking:
            self.app.display_warning(
                f"topoalloc is built WITHOUT {LIBRARY.name} (no {lacking}): shares will not be enforced"
            )
            return
        self._built = Path(tempfile.mkdtemp(prefix="topoalloc-shim-"))
        for made, folder in ((LIBRARY, SHIM), (VERIFY, SHIM / "verify")):
            sources = sorted(str(path.relative_to(root)) for path in (root / folder).glob("*.[cS]"))
            built = self._built / made.name
            command = [*compiler, f"@{folder / 'compile.flags'}", *sources, "-o", str(built)]
            subprocess.run(command, cwd=root, check=True)
            build_data["force_include"][str(built)] = str(made)
        build_data["pure_python"] = False
        # Any Python 3 on this architecture: neither knows anything of Python.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_built"):
            shutil.rmtree(self._built, ignore_errors=True)
