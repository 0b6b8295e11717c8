"""Widths of text, against the advance widths of the widest common sans-serif font."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.cli.picture.lettering import Face, fitted, text_width

# Thousandths of an em in DejaVu Sans, which is wider than Arial, Helvetica, Roboto, Segoe UI and Cantarell.
PLAIN = {
    275: "'", 278: "ijl", 295: "IJ", 318: " ,.", 337: "/:;\\|", 352: "f", 361: "-", 390: "()[]", 392: "t", 401: "!",
    411: "r", 460: '"', 500: "*_`", 521: "s", 525: "z", 531: "?", 550: "c", 557: "L", 575: "F", 579: "k", 592: "vxy",
    603: "P", 611: "TY", 612: "o", 613: "a", 615: "e", 632: "E", 634: "hnu", 635: "Sbdgpq", 636: "$0123456789{}",
    656: "K", 684: "AV", 685: "XZ", 686: "B", 695: "R", 698: "C", 732: "U", 748: "N", 752: "H", 770: "D", 775: "G",
    780: "&", 787: "OQ", 818: "w", 838: "#+<=>^~", 863: "M", 950: "%", 974: "m", 989: "W", 1000: "@…",
}  # fmt: skip
BOLD = {
    306: "'", 343: "ijl", 348: " ", 365: "/\\|", 372: "IJ", 380: ",.", 400: ":;", 415: "-", 435: "f", 456: "!",
    457: "()[]", 478: "t", 493: "r", 500: "_`", 521: '"', 523: "*", 580: "?", 582: "z", 593: "c", 595: "s", 637: "L",
    645: "x", 652: "vy", 665: "k", 675: "a", 678: "e", 682: "T", 683: "EF", 687: "o", 696: "$0123456789", 712: "hnu{}",
    716: "bdgpq", 720: "S", 724: "Y", 725: "Z", 733: "P", 734: "C", 762: "B", 770: "R", 771: "X", 774: "AV", 775: "K",
    812: "U", 821: "G", 830: "D", 837: "HN", 838: "#+<=>^~", 850: "OQ", 872: "&", 924: "w", 995: "M", 1000: "@…",
    1002: "%", 1042: "m", 1103: "W",
}  # fmt: skip


@pytest.mark.parametrize(("face", "widths"), [(Face.PLAIN, PLAIN), (Face.BOLD, BOLD)], ids=["plain", "bold"])
def test_no_character_of_the_widest_common_font_is_wider_than_estimated(face: Face, widths: dict[int, str]) -> None:
    too_wide = [
        letter for width, letters in widths.items() for letter in letters if text_width(letter, 1000, face) < width - 1
    ]

    assert too_wide == []


def test_every_printable_ascii_character_is_measured_in_both_faces() -> None:
    for widths in (PLAIN, BOLD):
        assert {letter for letters in widths.values() for letter in letters} >= {chr(code) for code in range(32, 127)}


@given(st.text(max_size=40), st.floats(0, 200), st.sampled_from(Face))
def test_a_fitted_text_fits(text: str, width: float, face: Face) -> None:
    assert text_width(fitted(text, width, 12, face), 12, face) <= width


@given(st.text(max_size=40), st.sampled_from(Face))
def test_a_text_that_fits_is_left_alone(text: str, face: Face) -> None:
    assert fitted(text, text_width(text, 12, face), 12, face) == text
