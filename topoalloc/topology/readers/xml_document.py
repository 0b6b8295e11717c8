"""XML from an untrusted file as a small tree of plain elements.

Nothing is fetched and nothing is expanded: a document that declares or uses entities is refused, a DOCTYPE that only
names a DTD (as nvidia-smi and hwloc write) is accepted and ignored. Size, element count and depth are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from topoalloc.topology.reading import SourceRefusal

# An hwloc file of a 4-socket machine is 0.5 MiB and has 5,000 elements; the bounds leave a factor of forty, and the
# largest tree within them is built in about a second.
BYTES_MAX = 32 * 2**20
ELEMENTS_MAX = 200_000
# Real documents nest about 20 deep (hwloc: package, caches, core, bridges). Readers may therefore recurse.
DEPTH_MAX = 64


@dataclass(frozen=True, slots=True)
class XmlElement:
    """One element: its own character data stripped of surrounding white space, and its children in order."""

    tag: str
    attributes: Mapping[str, str]
    text: str
    children: tuple[XmlElement, ...]

    def named(self, tag: str) -> tuple[XmlElement, ...]:
        """The children with this tag, in order."""
        return tuple(child for child in self.children if child.tag == tag)

    def child(self, tag: str) -> XmlElement | None:
        """The first child with this tag."""
        return next((child for child in self.children if child.tag == tag), None)

    def text_at(self, *path: str) -> str | None:
        """The text of the first descendant along `path` (`pci`, `pci_bus_id`); None where a step is missing."""
        element: XmlElement | None = self
        for tag in path:
            if element is None:
                return None
            element = element.child(tag)
        return None if element is None else element.text

    def walk(self) -> Iterator[XmlElement]:
        """This element and all below it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_xml(data: bytes | str, name: str) -> XmlElement | SourceRefusal:
    """Parse a whole document; `name` becomes the `source` of a refusal. Never raises for bad input."""
    # A str is counted in characters: at most four times as many bytes, still a bounded amount of work.
    if len(data) > BYTES_MAX:
        return SourceRefusal(name, f"XML larger than {BYTES_MAX >> 20} MiB; give the file of one machine")
    builder = _TreeBuilder()
    try:
        builder.parser.Parse(data, True)
    except _NotAcceptedError as refusal:
        return SourceRefusal(name, str(refusal))
    except expat.ExpatError as error:
        return SourceRefusal(
            name,
            f"damaged XML at line {error.lineno}, column {error.offset + 1} ({expat.ErrorString(error.code)}); "
            "the file is cut short or altered, record it again",
        )
    except (LookupError, ValueError):  # an encoding Python does not know, or text that is no Unicode
        return SourceRefusal(name, "XML in an unknown text encoding; save it as UTF-8")
    if builder.root is None:
        return SourceRefusal(name, "XML without any element")
    return builder.root


class _NotAcceptedError(Exception):
    """Well-formed XML that this reader does not take; the text is the reason."""


@dataclass(slots=True)
class _Open:
    """An element whose end has not been seen."""

    tag: str
    attributes: dict[str, str]
    text: list[str] = field(default_factory=list)
    children: list[XmlElement] = field(default_factory=list)


class _TreeBuilder:
    """Collects expat's events into one tree, within the bounds."""

    def __init__(self) -> None:
        self.root: XmlElement | None = None
        self._open: list[_Open] = []
        self._elements = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity_declared
        self.parser.SkippedEntityHandler = self._entity_used
        self.parser.ExternalEntityRefHandler = self._external_entity_used

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > ELEMENTS_MAX:
            raise _NotAcceptedError(f"XML with more than {ELEMENTS_MAX} elements; give the file of one machine")
        if len(self._open) >= DEPTH_MAX:
            raise _NotAcceptedError(f"XML nested deeper than {DEPTH_MAX} elements at <{tag[:40]}>")
        self._open.append(_Open(tag, attributes))

    def _end(self, _tag: str) -> None:
        done = self._open.pop()
        element = XmlElement(done.tag, done.attributes, "".join(done.text).strip(), tuple(done.children))
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element

    def _characters(self, text: str) -> None:
        if self._open:
            self._open[-1].text.append(text)

    def _doctype(self, doctype: str, _system_id: str | None, _public_id: str | None, has_internal_subset: bool) -> None:
        # An internal subset can declare entities and default attributes, which no topology file needs.
        if has_internal_subset:
            raise _NotAcceptedError(f"XML whose DOCTYPE {doctype[:40]!r} carries declarations; remove them")

    def _entity_declared(self, name: str, *_rest: object) -> None:
        raise _NotAcceptedError(f"XML that declares the entity {name[:40]!r}; entities are never expanded")

    def _entity_used(self, name: str, _is_parameter_entity: bool) -> None:
        raise _NotAcceptedError(f"XML that uses the entity {name[:40]!r}; entities are never expanded")

    def _external_entity_used(self, *_args: object) -> int:
        raise _NotAcceptedError("XML that refers to an external entity; nothing is fetched")
