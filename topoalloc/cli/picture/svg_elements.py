"""SVG elements as strings: escaped, rounded the same way everywhere, coloured by class name only."""

from __future__ import annotations

import re
from html import escape

from topoalloc.cli.picture.lettering import Face, fitted, text_width

# Light and dark: every colour of the picture has a name and both values. Classes are drawn nearest (green) to
# farthest (red), the rooms themselves stay quiet.
_FILLS = {
    "page": ("#faf8f4", "#11151b"),
    "room": ("#ffffff", "#191f28"),
    "stray": ("#fbfaf8", "#151a21"),
    "tray": ("#f5f3ee", "#222a35"),
    "bridge": ("#f7f4fd", "#201f33"),
    "pxb": ("#edf5fb", "#172838"),
    "pix": ("#e8f6f1", "#132e29"),
    "card": ("#f3f5f6", "#1f262e"),
    "gpu": ("#25303d", "#3a4a5e"),
    "nic": ("#ffffff", "#27303b"),
    "ink": ("#1d2530", "#eef2f6"),
    "muted": ("#66707d", "#98a4b3"),
    "bright": ("#ffffff", "#ffffff"),
    "pale": ("#b9c6d4", "#c3cfdc"),
    "fabric": ("#4c7a12", "#5d9417"),
    "groove": ("#465564", "#22303f"),
    "cores": ("#f2b134", "#f2b134"),
    "memory": ("#4fb3d9", "#4fb3d9"),
    "glyph": ("#8a94a1", "#8795a6"),
    "c-pix": ("#17a07f", "#2bbf9a"),
    "c-pxb": ("#3b86c0", "#5aa5de"),
    "c-phb": ("#8a72c9", "#a48fe0"),
    "c-node": ("#dc9a2b", "#e0a645"),
    "c-sys": ("#c25450", "#dd716c"),
    "c-unknown": ("#9aa3ad", "#77828f"),
}
_STROKES = {
    "s-room": ("#dfb768", "#a5803c"),
    "s-stray": ("#b9bec5", "#566270"),
    "s-bridge": ("#a793dc", "#7d6cbb"),
    "s-pxb": ("#6aa8d6", "#3f80b5"),
    "s-pix": ("#4dbb9f", "#2c957a"),
    "s-card": ("#b4bcc4", "#55616e"),
    "s-nic": ("#98a4b0", "#5d6b7b"),
    "s-tray": ("#e6e1d6", "#303a47"),
    "s-glyph": ("#8a94a1", "#8795a6"),
    "s-few": ("#a9cf6e", "#557a24"),
    "s-some": ("#6a9f24", "#82bd33"),
    "s-many": ("#3c640c", "#b6e06c"),
}
_SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif"
_MONO = "ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"
# XML 1.0 cannot hold most control characters, escaped or not; a model name read from a file may.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


_TONE_GAP = 7.0
_TONE_CHARACTERS_MIN = 8  # a shorter beginning of a text tells nothing


def style_sheet() -> str:
    """The only style of a picture: both colour schemes, and fonts that every reader has."""
    faces = f"text{{font-family:{_SANS}}}.mono{{font-family:{_MONO}}}.bold{{font-weight:700}}"
    outlines = ".dashed{stroke-dasharray:5 4}.cable{fill:none;stroke-linecap:round}"
    dark = f"@media(prefers-color-scheme:dark){{{_colours(1)}}}"
    return f"<style>{faces}{outlines}{_colours(0)}{dark}</style>"


def _colours(scheme: int) -> str:
    fills = "".join(f".{name}{{fill:{pair[scheme]}}}" for name, pair in _FILLS.items())
    return fills + "".join(f".{name}{{stroke:{pair[scheme]}}}" for name, pair in _STROKES.items())


def number(value: float) -> str:
    """At most one decimal, never `-0`: a tenth of a pixel is not seen, and the bytes stay the same everywhere."""
    rounded = f"{value + 0.0:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def xml_text(text: str) -> str:
    return escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


def rectangle(x: float, y: float, width: float, height: float, classes: str, radius: float = 0) -> str:
    rounding = f' rx="{number(radius)}"' if radius else ""
    return (
        f'<rect class="{classes}" x="{number(x)}" y="{number(y)}" '
        f'width="{number(width)}" height="{number(height)}"{rounding}/>'
    )


def circle(x: float, y: float, radius: float, classes: str) -> str:
    return f'<circle class="{classes}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>'


def path(data: str, classes: str, width: float, tooltip: str = "") -> str:
    inside = f"<title>{xml_text(tooltip)}</title>" if tooltip else ""
    return f'<path class="{classes}" d="{data}" stroke-width="{number(width)}">{inside}</path>'


def lettering(
    x: float, y: float, text: str, size: float, width: float, classes: str = "ink", anchor: str = "start"
) -> str:
    """One line of text, no wider than `width`: shortened with the whole of it as tooltip where need be."""
    words = classes.split()
    face = Face.MONO if "mono" in words else Face.BOLD if "bold" in words else Face.PLAIN
    shown = fitted(text, width, size, face)
    tooltip = f"<title>{xml_text(text)}</title>" if shown != text else ""
    end = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return (
        f'<text class="{classes}" x="{number(x)}" y="{number(y)}" font-size="{number(size)}"{end}>'
        f"{tooltip}{xml_text(shown)}</text>"
    )


def two_tone(x: float, y: float, texts: tuple[str, str], sizes: tuple[float, float], width: float, second: str) -> str:
    """A bold text and a plain one (of class `second`) right after it, together no wider than `width`."""
    first, other = texts
    shown = fitted(first, width, sizes[0], Face.BOLD)
    rest = width - text_width(shown, sizes[0], Face.BOLD) - _TONE_GAP
    beside = fitted(other, rest, sizes[1])
    if beside != other and len(beside) < _TONE_CHARACTERS_MIN:
        beside = ""
    tooltip = f"<title>{xml_text(f'{first} {other}')}</title>" if (shown, beside) != texts else ""
    tail = (
        f'<tspan class="{second}" dx="{number(_TONE_GAP)}" font-size="{number(sizes[1])}">{xml_text(beside)}</tspan>'
        if beside
        else ""
    )
    return (
        f'<text x="{number(x)}" y="{number(y)}">{tooltip}'
        f'<tspan class="ink bold" font-size="{number(sizes[0])}">{xml_text(shown)}</tspan>{tail}</text>'
    )


def group(content: str, tooltip: str) -> str:
    return f"<g><title>{xml_text(tooltip)}</title>{content}</g>"
