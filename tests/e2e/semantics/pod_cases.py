"""Hypothesis strategies for what comes before and after the managers: quantities, a pod's totals, the fit check."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = Any
NUMBERS = st.one_of(st.integers(0, 10**20).map(str), st.from_regex(r"[0-9]{0,12}\.?[0-9]{0,14}", fullmatch=True))
DECIMAL_SUFFIXES = (
    "",
    "n",
    "u",
    "m",
    "k",
    "K",
    "M",
    "G",
    "T",
    "P",
    "E",
    "e3",
    "E3",
    "e-3",
    "E+2",
    "e10",
    "e-12",
    "e18",
)
BINARY_SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
NO_SUFFIXES = ("i", "e", "mi", "e3i", "EE", "e20")
SUFFIXES = (*DECIMAL_SUFFIXES, *BINARY_SUFFIXES, *NO_SUFFIXES)
QUANTITIES = st.one_of(
    st.tuples(st.sampled_from(("", "", "+", "-")), NUMBERS, st.sampled_from(SUFFIXES)).map("".join),
    st.text(alphabet="0123456789.+-eEinumkMGTPK ", max_size=8),
)
FITTED = ("cpu", "memory", "a.io/x", "b.io/y", "hugepages-2Mi", "ephemeral-storage")
TOTALLED = ("cpu", "memory", "hugepages-2Mi", "a.io/x", "a.io/y")


def quantities() -> st.SearchStrategy[Json]:
    """A question of op quantity."""
    return QUANTITIES.map(lambda text: {"op": "quantity", "text": text})


@st.composite
def totals(draw: st.DrawFn) -> Json:
    """A question of op pod."""
    amounts = st.dictionaries(
        st.sampled_from(TOTALLED), st.sampled_from(("0", "1", "2", "500m", "1500m", "3", "1Gi")), max_size=4
    )
    containers = []
    for i in range(draw(st.integers(1, 5))):
        init, requests = draw(st.booleans()), draw(amounts)
        limits = requests if draw(st.booleans()) else draw(amounts)
        sidecar = init and draw(st.booleans())
        containers.append(
            {"name": f"c{i}", "requests": requests, "limits": limits, "init": init, "restartable": sidecar}
        )
    of_pod = st.dictionaries(
        st.sampled_from(("cpu", "memory", "a.io/x", "hugepages-1Gi")), st.sampled_from(("0", "1", "2")), max_size=2
    )
    limits = draw(of_pod) if draw(st.booleans()) else {}
    requests = limits if draw(st.booleans()) else {}
    containers.sort(key=lambda c: not c["init"])
    return {"op": "pod", "pod": {"uid": "p", "containers": containers, "requests": requests, "limits": limits}}


@st.composite
def fitting_pods(draw: st.DrawFn, uid: str) -> Json:
    containers = []
    for i in range(draw(st.integers(1, 3))):
        init = draw(st.booleans())
        wanted = {}
        for name in draw(st.lists(st.sampled_from(FITTED), unique=True, max_size=4)):
            sizes = ("0", "1", "2", "500m", "1500m", "3", "8") if name in ("cpu", "memory") else ("0", "1", "2", "4")
            wanted[name] = draw(st.sampled_from(sizes))
        sidecar = init and draw(st.booleans())
        containers.append({"name": f"c{i}", "requests": wanted, "limits": wanted, "init": init, "restartable": sidecar})
    containers.sort(key=lambda c: not c["init"])
    return {"uid": uid, "containers": containers, "overhead": draw(st.sampled_from((None, {"cpu": "250m"})))}


@st.composite
def fits(draw: st.DrawFn) -> Json:
    """A question of op fit."""
    sizes = st.sampled_from(("0", "1", "2", "4", "8", "16"))
    allocatable = draw(st.dictionaries(st.sampled_from(FITTED), sizes))
    allocatable["pods"] = str(draw(st.integers(1, 5)))
    others = [draw(fitting_pods(f"o{i}")) for i in range(draw(st.integers(0, 3)))]
    return {"op": "fit", "pod": draw(fitting_pods("new")), "others": others, "allocatable": allocatable}
