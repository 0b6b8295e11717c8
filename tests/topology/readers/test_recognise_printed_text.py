"""Each kind of printed text is recognised by its own reader and by no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.topology.readers.recorded import MACHINES, read
from topoalloc.topology.readers import (
    lspci_tree,
    numactl_text,
    nvlink_text,
    pci_list,
    smi_list,
    smi_query_xml,
    topo_matrix,
    topo_p2p,
)
from topoalloc.topology.readers.printed_text import HEAD_LENGTH_MAX
from topoalloc.topology.reading import Reading, SourceRefusal

READERS = (topo_matrix, topo_p2p, smi_list, nvlink_text, smi_query_xml, numactl_text, lspci_tree, pci_list)
BY_ENDING = {
    ".topo-m.txt": topo_matrix,
    ".topo-p2p-n.txt": topo_p2p,
    ".smi-L.txt": smi_list,
    ".nvlink-s.txt": nvlink_text,
    ".nvlink-R.txt": nvlink_text,
    ".smi-q.xml": smi_query_xml,
    ".numactl-H.txt": numactl_text,
    ".lspci-tv.txt": lspci_tree,
    ".gpu-numa.txt": pci_list,
}

# All readers together need about a second; the square of 65,000 characters takes one pattern many minutes.
HOSTILE_LIMIT_S = 120
# Texts that tempt a pattern to cost the square of their length.
HOSTILE = {
    "empty lines": "\n" * HEAD_LENGTH_MAX,
    "blanks": " " * HEAD_LENGTH_MAX,
    "tabs": "\t" * HEAD_LENGTH_MAX,
    "rules": "|" * HEAD_LENGTH_MAX,
    "brackets": "[" * HEAD_LENGTH_MAX,
    "a heading that does not end": "GPU 0: A" + " " * 65_000 + "b",
    "headings in a heading": "GPU 0: " + "(UUID: " * 9_000,
    "a link that does not end": "GPU 0: A (UUID: GPU-1)\n\t Link 0: a" + " " * 65_000 + "b",
    "assignments": "00:00.0 " + "a=b," * 16_000,
    "titles": "\tGPU0 " + "CPUNUMA" * 9_000 + "\nGPU0\t X ",
    "cells": "\tGPU0\nGPU0 " + "NV1" * 20_000,
    "continuations": "\tGPU0\nGPU0\t X \n" + "0-1,\n" * 19_000,
    "long continuations": "\tGPU0\nGPU0\t X \n" + ("0-1," * 8_000 + "\n") * 31,
    "rows": "".join(f"GPU{at}\tX\n" for at in range(19_000)),
    "bridges": "-[0000:00]-" + "-00.0-[01]--" * 5_000,
    "functions": "-+-[0000:00]-+-00.0  a\n" + " |           +-01.0  b\n" * 19_000,
    "nodes": "available: 2 nodes (" + "0," * 30_000,
    "cpus": "node 0 cpus:" + " 1" * 30_000,
    "a million lines": "GPU0\tX\n" * 1_000_000,
}


def reader_of(name: str) -> object:
    return next((reader for ending, reader in BY_ENDING.items() if name.endswith(ending)), None)


@pytest.mark.parametrize("name", sorted(path.name for path in MACHINES.iterdir()))
def test_a_recorded_file_is_recognised_by_its_reader_alone(name: str) -> None:
    head = (MACHINES / name).read_bytes()[:HEAD_LENGTH_MAX].decode(errors="replace")
    expected = reader_of(name)
    assert [reader for reader in READERS if reader.recognise(head)] == ([expected] if expected else [])


@pytest.mark.parametrize("name", sorted(path.name for path in MACHINES.iterdir() if reader_of(path.name)))
def test_a_reader_refuses_what_another_one_reads(name: str) -> None:
    text = (MACHINES / name).read_text()
    readings = [reader for reader in READERS if isinstance(reader.parse(text, name), Reading)]
    assert readings == [reader_of(name)]


@pytest.mark.timeout(HOSTILE_LIMIT_S)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_text_is_refused_by_every_reader_without_costing_its_square(what: str) -> None:
    text = HOSTILE[what]
    for reader in READERS:
        reader.recognise(text[:HEAD_LENGTH_MAX])
        refusal = reader.parse(text, "host.txt")
        assert isinstance(refusal, SourceRefusal)
        assert len(str(refusal)) < 400


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__.rsplit(".", 1)[-1])
def test_the_same_text_gives_the_same_reading(reader: object) -> None:
    parse: Callable[[str, str], Reading | SourceRefusal] = vars(reader)["parse"]
    name = next(path.name for path in sorted(MACHINES.iterdir()) if reader_of(path.name) is reader)
    text = (MACHINES / name).read_text()
    assert read(parse(text, name)) == read(parse(text, name))
