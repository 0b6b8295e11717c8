"""How wide a text can get, so that it never leaves its box in whichever font the reader has.

Widths are upper bounds in em, bucketed from the widest of the common sans-serif fonts (DejaVu Sans, Verdana);
narrower fonts leave room to spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Face(Enum):
    """A face and the most that it widens the bucketed widths; monospace has one width instead."""

    PLAIN = "plain"
    BOLD = "bold"
    MONO = "mono"


_BOLD_WIDENING = 1.14
_MONO_EM = 0.603
_BUCKETS = (
    (0.33, "Iijl'"),
    (0.44, " !(),-./:;[\\]frt|·"),
    (0.56, '*?"_`czsL–'),
    (0.66, "0123456789abdeghknopquvxyEFPSTY${}J"),
    (0.84, "ABCDGHKNOQRUVXZ&#+<=>^~×"),
)
_WIDEST_EM = 1.0
_EM = {character: width for width, characters in _BUCKETS for character in characters}


def text_width(text: str, size: float, face: Face = Face.PLAIN) -> float:
    """The most that `text` can measure at font size `size`, in the same unit."""
    if face is Face.MONO:
        return size * sum(_MONO_EM if character.isascii() else _WIDEST_EM for character in text)
    em = sum(_EM.get(character, _WIDEST_EM) for character in text)
    return size * em * (_BOLD_WIDENING if face is Face.BOLD else 1.0)


def first_fitting(texts: Sequence[str], width: float, size: float, face: Face = Face.PLAIN) -> str:
    """The first of these texts that fits, else the last."""
    return next((text for text in texts if text_width(text, size, face) <= width), texts[-1])


def fitted(text: str, width: float, size: float, face: Face = Face.PLAIN) -> str:
    """The text where it fits into `width`, else its beginning and an ellipsis; empty where not even that fits."""
    if text_width(text, size, face) <= width:
        return text
    for length in range(len(text) - 1, 0, -1):
        shorter = text[:length].rstrip(" ,-·") + "…"
        if text_width(shorter, size, face) <= width:
            return shorter
    return ""
