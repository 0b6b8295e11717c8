"""Reading XML from files nobody vouches for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.topology.readers.xml_document import DEPTH_MAX, ELEMENTS_MAX, XmlElement, read_xml
from topoalloc.topology.reading import SourceRefusal

MACHINES = Path(__file__).parents[2] / "machines"
XML_FILES = sorted(MACHINES.glob("*.xml"))


def tree(text: str | bytes) -> XmlElement:
    element = read_xml(text, "a.xml")
    assert isinstance(element, XmlElement), element
    return element


def refusal(text: str | bytes) -> str:
    refused = read_xml(text, "a.xml")
    assert isinstance(refused, SourceRefusal)
    assert refused.source == "a.xml"
    assert "\n" not in refused.reason
    return refused.reason


def test_an_element_has_tag_attributes_stripped_text_and_children_in_order() -> None:
    root = tree('<a x="1"> hello <b/><c>t</c> world\n<b y="2"/></a>')
    assert (root.tag, dict(root.attributes), root.text) == ("a", {"x": "1"}, "hello  world")
    assert [child.tag for child in root.children] == ["b", "c", "b"]
    assert root.named("b")[1].attributes["y"] == "2"
    assert root.text_at("c") == "t"
    assert root.text_at("c", "d", "e") is None
    assert [element.tag for element in root.walk()] == ["a", "b", "c", "b"]


@pytest.mark.parametrize("path", XML_FILES, ids=lambda path: path.name)
def test_every_recorded_xml_file_is_read(path: Path) -> None:
    assert len(list(tree(path.read_bytes()).walk())) > 5


def test_a_doctype_that_only_names_a_dtd_is_accepted_and_nothing_is_fetched() -> None:
    assert tree('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a>x</a>').text == "x"


def test_the_five_built_in_entities_and_character_references_are_read() -> None:
    assert tree("<a>&lt;&amp;&gt;&quot;&apos;&#65;&#x42;</a>").text == "<&>\"'AB"


def test_an_entity_bomb_is_refused_at_its_declaration() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><a>&b;</a>'
    assert "declarations" in refusal(bomb)


def test_an_external_entity_is_refused() -> None:
    assert "declarations" in refusal('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>')


def test_an_entity_that_an_unread_dtd_might_declare_is_refused_instead_of_dropped() -> None:
    assert "entity" in refusal('<!DOCTYPE a SYSTEM "a.dtd"><a>&x;</a>')


def test_a_document_cut_short_is_refused_with_its_line() -> None:
    assert "line 2" in refusal("<a>\n<b>")


@pytest.mark.parametrize("data", ["", b"", "plain text", b"\x00\x01\xff", "\udcff<a/>", b"\x1f\x8b\x08\x00"])
def test_what_is_no_xml_is_refused(data: str | bytes) -> None:
    assert refusal(data)


def test_an_unknown_encoding_is_refused() -> None:
    assert "encoding" in refusal(b'<?xml version="1.0" encoding="klingon"?><a/>')


def test_too_deep_a_document_is_refused() -> None:
    assert "deeper" in refusal("<a>" * (DEPTH_MAX + 1) + "</a>" * (DEPTH_MAX + 1))
    assert tree("<a>" * DEPTH_MAX + "</a>" * DEPTH_MAX).tag == "a"


def test_too_many_elements_are_refused_within_seconds() -> None:
    started = time.monotonic()
    assert "elements" in refusal("<a>" + "<b/>" * (ELEMENTS_MAX + 5) + "</a>")
    assert time.monotonic() - started < 10


@given(st.one_of(st.text(), st.binary()))
def test_arbitrary_input_never_raises(data: str | bytes) -> None:
    assert isinstance(read_xml(data, "a.xml"), XmlElement | SourceRefusal)


@given(st.data())
def test_a_recorded_file_cut_anywhere_is_refused(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(XML_FILES)).read_bytes().rstrip()
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(read_xml(whole[:cut], "a.xml"), SourceRefusal)
