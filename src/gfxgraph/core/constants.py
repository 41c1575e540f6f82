"""Keys for constants: equal if two values that are not tensors have the same effect on a function.

In Python ``1 == True == 1.0`` and ``nan != nan``; a captured function distinguishes the first three,
and two calls with the same nan are the same call.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
from types import BuiltinFunctionType, FunctionType
from typing import Any

_BY_VALUE = (str, bytes, int, bool, type(None), type(...), type(NotImplemented), range)
_OF_THE_LIBRARY = (
    decimal.Decimal, fractions.Fraction, pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


class NotConstant(Exception):
    """The value has no content that can be compared."""


def constant_key(value: Any) -> object:
    """A hashable that is equal for two values exactly if they are the same constant.

    Raises:
        NotConstant: an object compared by identity, whose content may change without being noticed.
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is slice:
        return kind, constant_key(value.start), constant_key(value.stop), constant_key(value.step)
    if kind is tuple:
        return kind, tuple(constant_key(item) for item in value)
    if kind is frozenset or kind is set:
        return kind, frozenset(constant_key(item) for item in value)
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, _OF_THE_LIBRARY):
        return kind, str(value)
    if isinstance(value, type | BuiltinFunctionType) or (kind is FunctionType and value.__closure__ is None):
        return kind, value  # by identity: code does not change; a closure may
    raise NotConstant(kind.__qualname__)
