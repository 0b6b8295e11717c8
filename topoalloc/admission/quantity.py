"""Kubernetes quantities (`100m`, `1.5`, `2e3`, `1Gi`) as exact numbers (apimachinery pkg/api/resource)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.errors import InputError

NANOS = 10**9
VALUE_MAX = 2**63 - 1  # the kubelet counts in 64 bits
DIGITS_MAX = 64  # more digits than any meaningful quantity; bounds the arithmetic on hostile text
EXPONENT_MAX = 64  # beyond it every non-zero number is clamped or rounded up anyway

_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([eE])([+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL_NANOS = {
    suffix: 10**power
    for suffix, power in {"n": 0, "u": 3, "m": 6, "": 9, "k": 12, "M": 15, "G": 18, "T": 21, "P": 24, "E": 27}.items()
}
_BINARY_NANOS = {
    suffix: NANOS << shift for suffix, shift in {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}.items()
}
_NANOS_BY_SUFFIX = {**_DECIMAL_NANOS, **_BINARY_NANOS}


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """A Kubernetes quantity, exact to a billionth, the finest the API keeps."""

    nanos: int

    @property
    def value(self) -> int:
        """The whole number, rounded up (Quantity.Value)."""
        return -(-self.nanos // NANOS)

    @property
    def milli(self) -> int:
        """Thousandths, rounded up (Quantity.MilliValue)."""
        return -(-self.nanos // 10**6)

    @property
    def is_whole(self) -> bool:
        return self.nanos % NANOS == 0

    def __str__(self) -> str:
        whole, rest = divmod(abs(self.nanos), NANOS)
        sign = "-" if self.nanos < 0 else ""
        return f"{sign}{whole}" + (f".{rest:09d}".rstrip("0") if rest else "")


ZERO = Quantity(0)


def parse_quantity(text: str) -> Quantity:
    """Read `100m`, `1.5`, `2e3`, `1Gi` ... Raises InputError that quotes the text.

    As in the API: finer than a billionth is rounded away from zero, and more than 2^63-1 with a binary suffix is
    clamped to it. Other numbers of that size, which the API stores and the kubelet then misreads, are refused, and
    so is text without a digit, which the API reads as 0.
    """
    match = _FORM.fullmatch(text)
    if match is None or not (match[2] or match[3]) or len(text) > DIGITS_MAX:
        raise InputError(f"not a quantity: {text[:DIGITS_MAX]!r} (write a number such as 2, 1.5, 500m, 4Gi or 1e3)")
    sign, whole, fraction, exponent, suffix = match[1], match[2], match[3] or "", match[5], match[6] or ""
    power = int(exponent) if exponent else 0
    if abs(power) > EXPONENT_MAX:
        raise InputError(f"not a quantity: the exponent of {text!r} is beyond {EXPONENT_MAX}")
    numerator = int(whole + fraction or "0") * _NANOS_BY_SUFFIX[suffix]
    scale = power - len(fraction)
    nanos = numerator * 10**scale if scale >= 0 else -(-numerator // 10**-scale)
    if nanos > VALUE_MAX * NANOS:
        if suffix not in _BINARY_NANOS:
            raise InputError(f"not a quantity: {text!r} is larger than 2^63-1")
        nanos = VALUE_MAX * NANOS
    return Quantity(-nanos if sign == "-" else nanos)
