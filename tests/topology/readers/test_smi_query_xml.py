"""`nvidia-smi -q -x`: addresses, UUIDs, models, memory and minor numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, read, refused, text_of
from topoalloc.topology.readers import smi_query_xml
from topoalloc.topology.reading import Reading, SourceRefusal, Standing

RECORDED = "firecracker-2xh200-nv18.smi-q.xml"
MIB = 1 << 20


def log(gpus: str, attached: int | None = None) -> str:
    count = "" if attached is None else f"<attached_gpus>{attached}</attached_gpus>"
    return f"<nvidia_smi_log>{count}{gpus}</nvidia_smi_log>"


def test_the_recorded_log_agrees_with_its_facts() -> None:
    reading = read(smi_query_xml.parse(text_of(RECORDED), RECORDED))
    facts = FACTS[RECORDED]["gpus"]
    assert [
        {"index": gpu.index, "busid": str(gpu.bdf), "model": gpu.model, "memory_mib": (gpu.memory_bytes or 0) // MIB}
        for gpu in reading.gpus
    ] == facts
    assert [gpu.minor for gpu in reading.gpus] == [0, 1]
    assert [(gpu.vendor, gpu.pci_device) for gpu in reading.gpus] == [("10de", "2335")] * 2
    assert [gpu.uuid for gpu in reading.gpus] == [f"GPU-00000000-0000-4000-8000-00000000000{at}" for at in range(2)]
    assert (reading.standing, reading.warnings) == (Standing.ADDITION, ())


def test_what_the_log_does_not_know_stays_silent() -> None:
    text = log(
        '<gpu id="00000000:3B:00.0"><product_name>N/A</product_name><uuid>N/A</uuid><minor_number>N/A</minor_number>'
        "<fb_memory_usage><total>N/A</total></fb_memory_usage></gpu>"
    )
    (gpu,) = read(smi_query_xml.parse(text, "q.xml")).gpus
    assert str(gpu.bdf) == "0000:3b:00.0"
    assert (gpu.model, gpu.uuid, gpu.minor, gpu.memory_bytes, gpu.pci_device) == (None,) * 5


def test_some_of_all_gpus_have_no_number() -> None:
    reading = read(smi_query_xml.parse(log('<gpu id="00000000:3B:00.0"/>', attached=8), "q.xml"))
    assert reading.gpus[0].index is None
    assert "1 of 8" in reading.warnings[0]


def test_mig_devices_without_uuid_are_pointed_out() -> None:
    pci = "<pci><pci_bus_id>00000000:3B:00.0</pci_bus_id></pci>"
    gpu = f"<gpu>{pci}<mig_devices><mig_device/></mig_devices></gpu>"
    reading = read(smi_query_xml.parse(log(gpu), "q.xml"))
    assert reading.gpus[0].mig == ()
    assert "nvidia-smi -L" in reading.warnings[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "damaged XML"),
        ("<topology/>", "root"),
        (log(""), "no <gpu>"),
        (log('<gpu id="here"/>'), "not a PCI address"),
        (log('<gpu id="00:00.0"/>' * 300), "more than"),
        ('<!DOCTYPE a [<!ENTITY a "b">]><nvidia_smi_log>&a;</nvidia_smi_log>', "declarations"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, reason: str) -> None:
    assert reason in refused(smi_query_xml.parse(text, "q.xml"))


@given(st.data())
def test_a_log_cut_anywhere_is_refused(data: st.DataObject) -> None:
    text = text_of(RECORDED).rstrip()
    assert isinstance(smi_query_xml.parse(text[: data.draw(st.integers(0, len(text) - 1))], "q.xml"), SourceRefusal)


@given(st.text())
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(smi_query_xml.parse(text, "q.xml"), Reading | SourceRefusal)
