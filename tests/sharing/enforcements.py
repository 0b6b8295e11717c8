"""The three implementations behind the seam, as a node could have them."""

from __future__ import annotations

from topoalloc.sharing.builtin_shim import BuiltinShim
from topoalloc.sharing.enforcement import Enforcement
from topoalloc.sharing.hami_core_shim import HamiCoreShim
from topoalloc.sharing.share import ShareRules
from topoalloc.sharing.vcuda_shim import VcudaShim

LIBRARY = "/var/lib/topoalloc/0123456789abcdef"
NAMES = ("builtin", "vcuda", "hami-core")


def enforcement(name: str, rules: ShareRules | None = None) -> Enforcement:
    rules = rules or ShareRules()
    found: dict[str, Enforcement] = {
        "builtin": BuiltinShim(rules, LIBRARY),
        "vcuda": VcudaShim(rules, "/opt/vcuda", (580, 159)),
        "hami-core": HamiCoreShim("/opt/vgpu"),
    }
    return found[name]
