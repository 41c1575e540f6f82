"""The tape: a functional program in SSA form.

A capture reuses the memory of intermediates, and replays depend on that reuse. So the tape
holds no tensors: a ``TapeValue`` is an id with the facts needed to find its memory again. Only inputs
that come from outside the capture are held (by the runtime), because a replay reads them.

Invariants: an entry's inputs were made by earlier entries, or are external; a value is made once;
entries are in the order in which Python issued them, which is a valid serial order of the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from gfxgraph.types import Where

Args = tuple[object, ...]
Kwargs = dict[str, object]
"""What a call of torch's is given: by place, and by name."""


class TapeValue(weakref.ref):  # type: ignore[type-arg]
    """One tensor of the program: the id that entries use in place of it.

    ``made_by`` is the entry's position, -1 for an external. ``address`` is where a replay puts it,
    0 for views (their base has it) and for host tensors. A call returns the tensor while it lives: the value
    is itself the weak reference, because a second object would make recording too slow.
    ``layout`` is set if memory is guarded, else None. ``owner`` is the number of the recorder
    that made it: a tensor may have values of several. Two values are never equal.

    ``TapeValue(tensor)`` leaves all of them to be set by the recorder; ``new_value`` sets them.
    """

    __slots__ = ("address", "layout", "made_by", "owner", "root", "segment")

    owner: int
    made_by: int
    segment: int
    address: int
    root: TapeValue | None
    layout: object

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__

    @property
    def is_external(self) -> bool:
        return self.made_by < 0

    @property
    def is_of_external(self) -> bool:
        """True for an external and for any view of one."""
        return self.made_by < 0 or (self.root is not None and self.root.made_by < 0)


def new_value(tensor: Any, owner: int, made_by: int, segment: int, address: int, root: TapeValue | None) -> TapeValue:
    """A value with all its attributes set."""
    value = TapeValue(tensor)
    value.owner = owner
    value.made_by = made_by
    value.segment = segment
    value.address = address
    value.root = root
    value.layout = None
    return value


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """One dispatched operation: what to call, with which values, making which values.

    ``args`` and ``kwargs`` are the call's, with each tensor replaced by its ``TapeValue``; ``outputs``
    mirrors the result in the same way. ``code`` and ``lasti`` name the Python line, resolved late
    because that costs more than recording. ``node_end`` is the graph's last node after the operation.
    """

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    outputs: object
    code: CodeType | None = None
    lasti: int = -1
    node_end: object = 0

    @property
    def last_nodes(self) -> tuple[int, ...]:
        """The capture's last nodes after the operation; several if streams were joined."""
        return self.node_end if isinstance(self.node_end, tuple) else (self.node_end,)  # 0 for a view: no node

    @property
    def name(self) -> str:
        """The operation as torch names it, ``aten::mm``."""
        schema = getattr(self.func, "_schema", None)
        return schema.name if schema is not None else getattr(self.func, "__name__", str(self.func))

    @property
    def where(self) -> Where:
        return where_of(self.code, self.lasti)


Place = tuple[CodeType | None, int]
"""A line of the program, resolved when it is shown: its code object and instruction."""


def where_of(code: CodeType | None, lasti: int) -> Where:
    """The source line of an instruction; an empty place if there was no user frame."""
    if code is None:
        return Where("<no Python frame>", 0)
    lines = (line for start, end, line in code.co_lines() if start <= lasti < end and line is not None)
    return Where(code.co_filename, next(lines, code.co_firstlineno), code.co_name)


@dataclass(slots=True)
class Opaque:
    """Nodes that appeared between two operations: launches outside torch's dispatcher."""

    before_entry: int
    code: CodeType | None = None
    lasti: int = -1
    last_node: int = 0
    names: tuple[str, ...] = ()

    @property
    def where(self) -> Where:
        return where_of(self.code, self.lasti)


class Tape:
    """The operations of one segment, in order, and the opaque launches among them.

    While recording, ``rows`` takes bare tuples (an ``Entry``'s arguments): making objects costs as
    much as everything else that recording does. ``entries`` makes them on demand.
    """

    __slots__ = ("_entries", "aliases", "generators", "modules", "opaque", "rows", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.rows: list[tuple[Any, ...]] = []
        self._entries: list[Entry] = []
        self.opaque: list[Opaque] = []
        # Position of an operation -> path of the module that made it; noted only while profiling is on.
        self.modules: dict[int, str] = {}
        # (before entry, made value, base value, layout): tensors that appeared although no operation made them.
        self.aliases: list[tuple[int, TapeValue, TapeValue, tuple[object, ...]]] = []
        # Position of an operation that draws random numbers -> (generator, handle on its state at that time).
        self.generators: dict[int, tuple[object, object]] = {}

    @property
    def entries(self) -> list[Entry]:
        done = self._entries
        if len(done) != len(self.rows):
            done.extend(Entry(*row) for row in self.rows[len(done) :])
        return done

    @property
    def is_complete(self) -> bool:
        """True when running the entries does everything that the segment did."""
        return not self.opaque


_VALUES: frozenset[type] = frozenset({TapeValue})


def leaves(spec: Any, kinds: frozenset[type] = _VALUES) -> Iterator[Any]:
    """Every value in an argument or output structure, in order; or everything of exactly these types."""
    kind = type(spec)
    if kind in kinds:
        yield spec
    elif kind is list or kind is tuple:
        for part in spec:
            yield from leaves(part, kinds)
    elif kind is dict:
        yield from leaves(list(spec.values()), kinds)
    elif kind is slice:
        yield from leaves([spec.start, spec.stop, spec.step], kinds)


def substitute(spec: Any, env: Callable[[Any], Any], kinds: frozenset[type] = _VALUES) -> Any:
    """The structure with each such value replaced by ``env(value)``."""
    kind = type(spec)
    if kind in kinds:
        return env(spec)
    if kind is list or kind is tuple:
        return kind(substitute(item, env, kinds) for item in spec)
    if kind is dict:
        return {name: substitute(item, env, kinds) for name, item in spec.items()}
    if kind is slice:
        return slice(*substitute((spec.start, spec.stop, spec.step), env, kinds))
    return spec
