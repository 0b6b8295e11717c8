"""Kubernetes quantities: every spelling, exactness, refusals."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.quantity import NANOS, VALUE_MAX, Quantity, parse_quantity
from topoalloc.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("7", 7),
        ("+7", 7),
        ("007", 7),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100m", Fraction(1, 10)),
        ("250u", Fraction(1, 4000)),
        ("3n", Fraction(3, NANOS)),
        ("2k", 2000),
        ("2M", 2_000_000),
        ("2G", 2 * 10**9),
        ("2T", 2 * 10**12),
        ("2P", 2 * 10**15),
        ("2E", 2 * 10**18),
        ("1Ki", 1024),
        ("1Mi", 1 << 20),
        ("1.5Gi", 3 << 29),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("1Ei", 1 << 60),
        ("2e3", 2000),
        ("2E3", 2000),
        ("2e+3", 2000),
        ("2500e-3", Fraction(5, 2)),
        ("-1", -1),
    ],
)
def test_every_spelling_is_read_exactly(text: str, value: Fraction | int) -> None:
    assert Fraction(parse_quantity(text).nanos, NANOS) == value


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1K", "1ki", "1 Gi", "1GiB", "1mi", "1e", "1e3.5", "1e3k", "--1", "1,5", "0x10", "m", "."]
)
def test_what_is_no_quantity_is_quoted(text: str) -> None:
    with pytest.raises(InputError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["9" * 100, "1e99", "1e-99", "10E", "9223372036854775808"])
def test_what_is_far_too_large_or_long_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a quantity"):
        parse_quantity(text)


def test_binary_quantities_beyond_64_bits_are_clamped_as_the_api_does() -> None:
    """Found by comparison with upstream: only those with a binary suffix are."""
    assert parse_quantity("8Ei").value == VALUE_MAX


@pytest.mark.parametrize(("text", "nanos"), [("1.0000000001", NANOS + 1), ("0.1n", 1), ("-0.1n", -1)])
def test_finer_than_a_billionth_is_rounded_away_from_zero(text: str, nanos: int) -> None:
    assert parse_quantity(text).nanos == nanos


@pytest.mark.parametrize(("text", "value", "milli"), [("1500m", 2, 1500), ("1.0001", 2, 1001), ("2", 2, 2000)])
def test_whole_numbers_and_thousandths_are_rounded_up(text: str, value: int, milli: int) -> None:
    assert (parse_quantity(text).value, parse_quantity(text).milli) == (value, milli)


@given(st.integers(-(10**20), 10**20))
def test_what_is_printed_reads_back(nanos: int) -> None:
    assert parse_quantity(str(Quantity(nanos))) == Quantity(nanos)


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_refused_in_one_line(text: str) -> None:
    try:
        parse_quantity(text)
    except InputError as error:
        assert "\n" not in str(error)
