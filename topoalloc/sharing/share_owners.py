"""Which container each share belongs to, and the text in which the agent tells it to `topoalloc top`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.sharing.share import is_share_name

LINES_MAX = 4096
FIELDS = 5
_WORD = re.compile(r"[-A-Za-z0-9._]{1,253}")


@dataclass(frozen=True, slots=True)
class ShareOwner:
    """A container; `uid` of its pod, empty where nobody told it."""

    namespace: str
    pod: str
    container: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


def owners_text(owners: Mapping[str, ShareOwner]) -> str:
    """One line for each share: its name, namespace, pod, container and the pod's uid, or `-`."""
    return "".join(
        f"{name} {owner.namespace} {owner.pod} {owner.container} {owner.uid or '-'}\n"
        for name, owner in sorted(owners.items())
    )


def parse_owners(text: str) -> dict[str, ShareOwner]:
    """Read such a text; lines that are none are left out."""
    owners: dict[str, ShareOwner] = {}
    for line in text.split("\n")[:LINES_MAX]:
        fields = line.split(" ")
        if len(fields) == FIELDS and is_share_name(fields[0]) and all(map(_WORD.fullmatch, fields[1:])):
            owners[fields[0]] = ShareOwner(fields[1], fields[2], fields[3], "" if fields[4] == "-" else fields[4])
    return owners
