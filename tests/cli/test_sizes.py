"""Memory sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.errors import InputError
from topoalloc.topology.sizes import SIZE_BYTES_MAX, parse_size, size_words


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80GiB", 80 << 30),
        ("80Gi", 80 << 30),
        ("81920MiB", 80 << 30),
        ("85899345920", 80 << 30),
        ("80GB", 80 * 10**9),
        (" 80 gib ", 80 << 30),
        ("1.5KiB", 1536),
        ("1TiB", 1 << 40),
        ("512B", 512),
    ],
)
def test_a_size_is_read_in_binary_and_decimal_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "80G", "80M", "-1GiB", "1e9", "80 Gi B", "0", "0GiB", "2048TiB", "0.1B", "٣GiB" * 9]
)
def test_what_is_no_size_or_says_two_things_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_size(text)

    assert "\n" not in str(caught.value)


def test_a_bare_g_is_refused_with_both_spellings_that_would_be_clear() -> None:
    with pytest.raises(InputError, match=r"GiB.*GB"):
        parse_size("80G")


@given(st.integers(1, SIZE_BYTES_MAX))
def test_a_number_of_bytes_is_itself(size_bytes: int) -> None:
    assert parse_size(str(size_bytes)) == size_bytes


@given(st.integers(1, 1023), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_a_size_that_was_printed_is_read_back(count: int, unit: str) -> None:
    text = f"{count} {unit}"

    assert size_words(parse_size(text)) == text


@given(st.text(max_size=60))
def test_no_text_ends_in_anything_but_a_size_or_a_refusal(text: str) -> None:
    try:
        size_bytes = parse_size(text)
    except InputError:
        return

    assert 0 < size_bytes <= SIZE_BYTES_MAX
