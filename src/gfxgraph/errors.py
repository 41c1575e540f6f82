"""Every exception that gfxgraph raises.

    RuntimeError
    └── GfxGraphError            has .code and .fields; str() is the catalogue's text
        ├── ActivationError      the bridge cannot be switched on here
        ├── ConfigError          a setting has a value that is not one of the allowed
        │   └── ArgumentError        so has an argument of a function (a ValueError, too)
        ├── CaptureError         a capture cannot begin, go on or end
        ├── ReplayError          a captured graph cannot be replayed
        │   ├── GuardMismatch        what the capture assumed is no longer so
        │   ├── ValidationMismatch   replay and eager differ
        │   └── GfxGraphFault        the GPU faulted; names op, line and memory
        ├── CommandError         a command line that cannot be followed
        ├── DriverError          a call into the GPU runtime failed
        ├── MissingTorchName     this torch lacks an internal name that a feature needs
        └── SimulatorError       the simulator was asked for what it does not have

GfxGraphError is a RuntimeError because torch raises those, and engines that fall back by
themselves catch them. The text is made when it is asked for: raising costs no file access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Self, TypeVar

from gfxgraph import config as _config
from gfxgraph.types import OUR_PACKAGES

E = TypeVar("E", bound=StrEnum)


class GfxGraphError(RuntimeError):
    """An error with a catalogued meaning.

    Args:
        code: slug of the entry in ``diagnostics/catalogue``.
        quote: a third party's message, kept verbatim in the text, since programs search for it.
        fields: values for the entry's placeholders.
    """

    def __init__(self, code: str, /, *, quote: str = "", **fields: object) -> None:
        super().__init__(code)
        self.code = code
        self.quote = quote
        self.fields: dict[str, object] = fields

    def text(self, lang: str) -> str:
        """The explanation in ``lang``, whatever language is set."""
        # lazily: errors are imported by programs that never fail
        from gfxgraph.diagnostics.render import render

        return render(self.code, self.fields, lang, self.quote)

    def __str__(self) -> str:
        return self.text(_config.language_of())

    def __repr__(self) -> str:
        shown = "".join(f", {name}={value!r}" for name, value in self.fields.items())
        return f"{type(self).__name__}({self.code!r}{shown})"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        # Spawned workers send their errors home pickled; the default would lose the fields.
        return _rebuild, (type(self), self.code, self.quote, self.fields)


def _rebuild(cls: type[Any], code: str, quote: str, fields: dict[str, object]) -> Any:
    return cls(code, quote=quote, **fields)


class ActivationError(GfxGraphError):
    """The bridge cannot be switched on here; nothing was patched."""


@contextmanager
def naming_a_missing_package() -> Iterator[None]:
    """A context for imports from the packages beside gfxgraph: where one was left out, the error names it.

    Raises:
        ActivationError: `package_missing`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in OUR_PACKAGES:
            raise
        raise ActivationError("package_missing", package=error.name) from error


class ConfigError(GfxGraphError):
    """A setting has a value that is not one of the allowed."""


class ArgumentError(ConfigError, ValueError):
    """A function of ours was given an argument that it cannot use; a ValueError, too, as Python's own would be."""


class CommandError(GfxGraphError):
    """A command line that cannot be followed."""


class CaptureError(GfxGraphError):
    """A capture cannot begin, go on or end."""


class ReplayError(GfxGraphError):
    """A captured graph cannot be replayed."""


class GuardMismatch(ReplayError):
    """What the capture assumed is no longer so."""


class ValidationMismatch(ReplayError):
    """Replay and eager differ."""


class GfxGraphFault(ReplayError):
    """The GPU touched memory it may not; names op, source line and memory.

    As in 1.x it can be made of a message of one's own: ``GfxGraphFault("...", op=, tensors=, original=)``.

    Args:
        code: of the catalogue's entry, or the message.
        quote: what the runtime said.
        fields: what the entry's text names; with a message ``op``, ``tensors`` and ``original``.
    """

    def __init__(self, code: str, /, *, quote: str = "", **fields: object) -> None:
        if not code.isidentifier():  # a message
            code, quote = "named_fault", quote or code
        super().__init__(code, quote=quote, **fields)

    @property
    def op(self) -> str | None:
        """The operation that did it, where known."""
        found = self.fields.get("op")
        return str(found) if found is not None else None

    @property
    def tensors(self) -> list[object]:
        """The tensors involved, if known where the error was raised."""
        found = self.fields.get("tensors")
        if isinstance(found, dict):
            return list(found.values())
        return list(found) if isinstance(found, (list, tuple)) else []

    @property
    def original(self) -> BaseException | None:
        """The runtime's or torch's own error, where there was one."""
        found = self.fields.get("original", self.__cause__)
        return found if isinstance(found, BaseException) else None


class MissingTorchName(GfxGraphError):
    """This torch lacks an internal name that a feature needs (torch_names.py)."""


class DriverError(GfxGraphError):
    """A call into the GPU runtime failed; ``fields`` hold ``api``, ``status``, ``number`` where known."""


class SimulatorError(GfxGraphError):
    """The simulator was asked for what it does not have."""


def check_settings(settings: _config.Config) -> None:
    """Raise for the first setting that was refused.

    Args:
        settings: as read from the environment or given to ``enable``.

    Raises:
        ConfigError: `bad_setting`.
    """
    for problem in settings.problems:
        raise ConfigError("bad_setting", variable=problem.variable, value=problem.value, allowed=problem.allowed)


def member(kind: type[E], function: str, argument: str, value: object) -> E:
    """The member of an enumeration that an argument names.

    Args:
        kind: the enumeration.
        function: whose argument it is; for the message.
        argument: its name; likewise.
        value: what was given.

    Raises:
        ArgumentError: `bad_argument`, there is none.
    """
    try:
        return kind(str(value))
    except ValueError as error:
        fields = {"function": function, "argument": argument, "value": repr(value), "allowed": ", ".join(kind)}
        raise ArgumentError("bad_argument", **fields) from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line.

    Args:
        error: whose text it is; one without a text is named by its class.
    """
    return str(error).splitlines()[0] if str(error) else type(error).__name__
