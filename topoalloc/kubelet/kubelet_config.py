"""What the kubelet's own configuration file says about its Topology Manager and its control groups, where the agent may
read it."""

from __future__ import annotations

import logging
from pathlib import Path

from topoalloc.admission.policy import Policy, Scope, parse_options
from topoalloc.allocation.affinity import UNKNOWN_ALIGNMENT, Alignment
from topoalloc.errors import InputError
from topoalloc.yaml_documents import Document, parse_documents, read_documents

log = logging.getLogger(__name__)


class KubeletConfig:
    """The Topology Manager's settings, read again when the file changes (a kubelet that restarts may have others)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mark: tuple[int, int] | None = None
        self._alignment = UNKNOWN_ALIGNMENT
        self._complaint = ""

    def alignment(self) -> Alignment:
        """What is known now; never fails: an unreadable file means that nothing is known."""
        if self._path is None:
            return UNKNOWN_ALIGNMENT
        try:
            status = self._path.stat()
            mark = (status.st_mtime_ns, status.st_ino)
            if mark != self._mark:
                self._mark = mark
                self._alignment = _alignment_of(read_documents(self._path))
                log.info("the kubelet's Topology Manager: %s, scope %s", self._alignment.policy, self._alignment.scope)
        except (OSError, InputError) as error:
            self._alignment = UNKNOWN_ALIGNMENT
            if isinstance(error, OSError):
                self._mark = None  # a file that comes back unchanged is read again
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.info("%s tells nothing of the Topology Manager: %s", self._path, error)
        return self._alignment

    def cgroup_root(self) -> str:
        """Below which group the kubelet makes those of pods; empty: below the first, or nothing is known."""
        try:
            documents = () if self._path is None else read_documents(self._path)
        except (OSError, InputError):
            return ""
        content = documents[0].value if len(documents) == 1 else None
        root = content.get("cgroupRoot") if isinstance(content, dict) else None
        return root if isinstance(root, str) else ""


def parse_alignment(text: str) -> Alignment:
    """The Topology Manager's part of a KubeletConfiguration; raises InputError."""
    return _alignment_of(parse_documents(text, "KubeletConfiguration"))


def _alignment_of(documents: tuple[Document, ...]) -> Alignment:
    content = documents[0].value if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise InputError("no KubeletConfiguration")
    policy, scope = content.get("topologyManagerPolicy"), content.get("topologyManagerScope")
    options = content.get("topologyManagerPolicyOptions")
    try:
        return Alignment(
            policy=Policy(policy) if policy else Policy.NONE,  # the kubelet's default
            scope=Scope(scope) if scope else Scope.CONTAINER,
            options=parse_options({str(key): str(value) for key, value in (options or {}).items()}),
        )
    except (ValueError, AttributeError) as error:
        raise InputError(str(error)) from error
