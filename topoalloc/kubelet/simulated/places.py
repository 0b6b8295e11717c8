"""A value of a YAML document together with the path to it, so that every fault can say where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.errors import InputError
from topoalloc.yaml_documents import TEXT_SHOWN_MAX, Document


@dataclass(frozen=True, slots=True)
class Place:
    """A value and where it stands."""

    document: Document
    path: str
    value: object

    def error(self, what: str) -> InputError:
        return self.document.error(self.path, what)

    def mapping(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            raise self.error(f"must be a mapping, not {kind_of(self.value)}")
        return self.value

    def list(self) -> tuple[Place, ...]:
        if not isinstance(self.value, list):
            raise self.error(f"must be a list, not {kind_of(self.value)}")
        return tuple(Place(self.document, f"{self.path}[{number}]", item) for number, item in enumerate(self.value))

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.error(f"must be text, not {kind_of(self.value)}")
        return self.value

    def count(self, default: int) -> int:
        if self.value is None:
            return default
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            raise self.error(f"must be a whole number of 0 or more, not {shown(self.value)}")
        return self.value

    def at(self, *keys: str) -> Place:
        """The value below these keys; None where one of them is missing."""
        place = self
        for key in keys:
            path = f"{place.path}.{key}" if place.path else key
            value = None if place.value is None else place.mapping().get(key)
            place = Place(self.document, path, value)
        return place


def kind_of(value: object) -> str:
    """What a value is, in the words of YAML."""
    words = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return words.get(type(value), "a number")


def shown(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= TEXT_SHOWN_MAX else text[: TEXT_SHOWN_MAX - 3] + "...")
