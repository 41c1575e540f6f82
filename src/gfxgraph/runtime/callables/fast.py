"""The fast path: one call of a known signature in as little Python as there can be.

Problem: comparing shapes, strides and dtypes in Python costs a microsecond a tensor, which is what a
replay costs. Idea: torch's own C++ guards, made for compiled code, compare all tensors in one call and
torch's settings in another; what follows them is straight-line code, written out for the number of
arguments and results at hand, with every address and size already looked up.

A fast path answers ``MISS`` where anything is not as it was when it was made; the slow path then finds
out what. It never decides anything itself, and it exists only where a replay is one launch, no argument
is written to, and every result is the graph's own.

Source: measured (benchmarks/bench_callables.py); docs/decisions/0007.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.errors import ReplayError
from gfxgraph.runtime.callables.inputs import device_copier, is_dense, is_one_copy
from gfxgraph.runtime.callables.invent import Content, Pad, last_rows
from gfxgraph.runtime.callables.outputs import RING
from gfxgraph.runtime.graph import launch_of

if TYPE_CHECKING:
    from gfxgraph.runtime.callables.entry import Entry, Instance
    from gfxgraph.runtime.callables.watch import Watch

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()
Fast = Callable[[tuple[Any, ...], dict[str, Any]], Any]
DRIVER_COPIES = 2
"""Up to so many tensors are copied one by one through the driver; more in one fused call of torch."""


def never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The fast path of a callable that has none yet."""
    return MISS


def has_guards() -> bool:
    """True where this torch has the guards that the fast path stands on."""
    guards = torch._C._dynamo.guards
    return hasattr(guards, "TensorGuards") and hasattr(guards, "GlobalStateGuard")


def make_fast(
    entry: Entry,
    mark: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    sizes: Sequence[Sequence[int] | None] | None,
    hot: bool,
    watch: Watch,
    content: Sequence[Content] | None = None,
    sample_every: int = 0,
) -> Fast | None:
    """The fast path of calls like this one; None where they need the slow one.

    Args:
        mark: whom the padding must have been filled for.
        sizes: what each result is cut to.
        hot: hand out the graph's buffers.
        watch: tells where something outside the arguments has changed.
        content: what the padding of each argument holds; None where nothing is padded.
        sample_every: one call in so many is left to the slow path; 0 for none.
    """
    instances = entry.ring if hot else entry.instances()[:1]
    if (entry.mutates and not entry.in_place) or not instances or not all(_is_simple(i) for i in instances):
        return None
    if any(s.span is not None for s in entry.statics) or not all(t.is_cuda and is_dense(t) for t in tensors):
        return None
    writer = _Writer(entry, mark, tensors)
    if not has_guards() or not writer.takes(args, kwargs):
        return None
    writer.guards(watch)
    if sample_every:
        writer.names["is_sampled"] = itertools.cycle((False,) * (sample_every - 1) + (True,)).__next__
        writer.line("if is_sampled(): return MISS")
    writer.copy_in(content)
    if hot:
        writer.hand_out(instances, sizes)
        if len(instances) < RING or entry.first is None or not _is_simple(entry.first):
            writer.line("return MISS")
            return writer.function()
    assert entry.first is not None
    writer.copy_out(entry.first, sizes)
    return writer.function()


def _is_simple(instance: Instance) -> bool:
    outputs = instance.outputs
    return (
        not instance.has_guards
        and instance.graph._program is not None
        and instance.graph._program.is_plain
        and all(r.made is not None and not r.is_host for r in outputs.results)
        and all(is_dense(r.made) for r in outputs.results if r.made is not None)
    )


class _Writer:
    """Writes the function's source, and keeps what its names stand for."""

    def __init__(self, entry: Entry, mark: object, tensors: Sequence[Tensor]) -> None:
        self.entry, self.tensors = entry, tensors
        moving = entry.first.moving if entry.first is not None else None
        self._moving = moving.places if moving is not None else {}
        arena = entry.arena
        self.copier = device_copier(arena.state.driver)
        self.names: dict[str, Any] = {
            "MISS": MISS,
            "ReplayError": ReplayError,
            "arena": arena,
            "mark": mark,
            "lock": arena.lock,
            "settings": torch._C._dynamo.guards.GlobalStateGuard().check,
            "raw_stream": torch._C._cuda_getCurrentRawStream,
            "is_capturing": torch.cuda.is_current_stream_capturing,
            "device": arena.device_index,
            "launch": launch_of(arena.state.base),
            "copier": self.copier,
            "foreach_copy": torch._foreach_copy_,
            "empty_like": torch.empty_like,
            "use_count": torch._C._storage_Use_Count,
        }
        self.lines: list[str] = []
        self.n_taken = 0
        self.taken = "()"
        self.indent = ""

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Take the arguments apart, checking that they are the same tree; False where that is not simple."""
        self.line(f"if len(args) != {len(args)}: return MISS")
        if not kwargs:
            self.line("if kwargs: return MISS")
        else:
            self.names["keywords"] = list(kwargs)
            self.line("if list(kwargs) != keywords: return MISS")
        parts = [(f"args[{i}]", value) for i, value in enumerate(args)]
        parts += [(f"kwargs[{name!r}]", value) for name, value in kwargs.items()]
        return all(self._take(where, value) for where, value in parts)

    def _take(self, where: str, value: Any) -> bool:
        kind = type(value)
        if isinstance(value, Tensor):
            self.line(f"t{self.n_taken} = {where}")
            self.n_taken += 1
            return True
        if kind is tuple or kind is list:
            self.line(f"if type({where}) is not {kind.__name__} or len({where}) != {len(value)}: return MISS")
            return all(self._take(f"{where}[{i}]", item) for i, item in enumerate(value))
        if kind is dict and all(type(name) is str for name in value):
            self.line(f"if type({where}) is not dict or list({where}) != {list(value)!r}: return MISS")
            return all(self._take(f"{where}[{name!r}]", item) for name, item in value.items())
        if value is None or kind is bool:
            self.line(f"if {where} is not {value}: return MISS")
            return True
        if kind is int or kind is str or (kind is float and value == value and value != 0.0):
            self.line(f"if type({where}) is not {kind.__name__} or {where} != {value!r}: return MISS")
            return True
        return False

    def guards(self, watch: Watch) -> None:
        taken = ", ".join(f"t{i}" for i in range(self.n_taken))
        self.taken = f"({taken},)" if taken else "()"
        if self.n_taken:
            guards = torch._C._dynamo.guards
            self.names["check"] = guards.TensorGuards(
                *self.tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
            ).check
            self.line(f"if not check({taken}) or not settings(): return MISS")
        else:  # the tensors' check tells inference mode too
            self.names["inference"] = torch.is_inference_mode_enabled
            is_on = torch.is_inference_mode_enabled()
            self.line(f"if not settings() or inference() is not {is_on}: return MISS")
        self.line("stream = raw_stream(device)")
        # The default stream, 0, is never captured.
        self.line("if stream != arena.last_raw or (stream and is_capturing()): return MISS")
        if not watch.is_trivial:
            self.names["watch"], self.names["is_same"] = watch, watch.is_same
            self.line(f"if watch.token != {watch.token} or not is_same(): return MISS")

    def copy_in(self, content: Sequence[Content] | None) -> None:
        """Every argument into its buffer, or the part of it that is not padding."""
        if not self.entry.statics:
            return
        if self.entry.in_place:
            for i, static in enumerate(self.entry.statics):
                self.line(f"if t{i}.data_ptr() != {static.tensor.data_ptr()}: return MISS")
            return
        self.names["buffers"] = self.entry.buffers
        if any(static.tensor.size() != t.size() for static, t in zip(self.entry.statics, self.tensors)):
            self.names["fill"], self.names["content"] = self.entry.fill, content
            self.line(f"if buffers.filled_for is not mark: fill({self.taken}, content, mark)")
            self.line("else:")
            self.indent = "    "
        else:
            self.line("buffers.filled_for = mark")
        self._move_in()
        self._copies_in()
        self._repeat_last(content or ())
        self.indent = ""

    def _move_in(self) -> None:
        """Tell the graph where the arguments lie that it reads in place."""
        for i in self._moving:
            self.names[f"place{i}"], self.names["move"] = self._moving[i], self.entry.first.moving.move  # type: ignore
            self.line(f"given = t{i}.data_ptr()")
            self.line(f"if given != place{i}.address and not move({i}, given): return MISS")

    def _copies_in(self) -> None:
        pairs = list(zip(self.entry.statics, self.tensors))
        copied = [i for i in range(len(pairs)) if i not in self._moving]
        if not copied:
            self.line("pass")
            return
        statics = [pairs[i][0].target(pairs[i][1])[0] for i in copied]
        one_by_one = self.copier is not None and len(statics) <= DRIVER_COPIES
        # A bucket's buffer is contiguous whatever the argument is: a transposed one has another order of bytes.
        one_by_one = one_by_one and all(is_one_copy(s, pairs[i][1]) for s, i in zip(statics, copied))
        self.names["statics"] = statics
        if not one_by_one:
            self.line(f"foreach_copy(statics, ({', '.join(f't{i}' for i in copied)},))")
        for i, static in zip(copied, statics if one_by_one else ()):
            nbytes = static.numel() * static.element_size()
            if not nbytes:
                self.line("pass")
                continue
            self.names[f"static{i}"] = static
            self.line(f"given = t{i}.data_ptr()")
            self.line(
                f"if given != {static.data_ptr()} and copier({static.data_ptr()}, given, {nbytes}, stream): "
                f"static{i}.copy_(t{i})"
            )

    def _repeat_last(self, content: Sequence[Content]) -> None:
        """The last row of what was copied in, again, into all of its padding; one dim after the other."""
        by_dim: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for static, given, value in zip(self.entry.statics, self.tensors, content):
            if value is Pad.LAST:
                for dim, padding, last in last_rows(static.tensor.detach(), given.size()):
                    by_dim.setdefault(dim, []).append((padding, last))
        for dim in sorted(by_dim):
            self.names[f"padding{dim}"] = [padding for padding, _ in by_dim[dim]]
            self.names[f"last{dim}"] = [last for _, last in by_dim[dim]]
            self.line(f"foreach_copy(padding{dim}, last{dim})")

    def replay(self, instance: Instance, k: str = "", indent: str = "") -> None:
        """BridgedCUDAGraph.replay without the call: a frame of Python costs a tenth of a launch."""
        graph, replay = f"graph{k}", f"replay{k}"
        self.names[graph], self.names[replay] = instance.graph, instance.graph.replay
        for text in (
            f"left = {graph}._left - 1",
            f"if left < 0: {replay}()",
            "else:",
            f"    {graph}._left = left",
            f"    try: launch({graph})",
            f"    except RuntimeError as error: {graph}._replay_failed(error)",
        ):
            self.line(indent + text)

    def copy_out(self, instance: Instance, sizes: Sequence[Sequence[int] | None] | None) -> None:
        """Every result into memory of the caller's."""
        self.replay(instance)
        made = [r.made for r in instance.outputs.results]
        one_by_one = self.copier is not None and len(made) <= DRIVER_COPIES
        sources = []
        for i, static in enumerate(made):
            assert static is not None
            source = static.detach()
            for dim, n in enumerate((sizes[i] if sizes is not None else None) or ()):
                source = source.narrow(dim, 0, n)
            one_by_one = one_by_one and is_dense(source)
            sources.append(source)
        for i, source in enumerate(sources):
            self.names[f"source{i}"] = source
            self.line(f"out{i} = empty_like(source{i})")
        nbytes = [source.numel() * source.element_size() for source in sources]
        if one_by_one:
            for i, source in enumerate(sources):
                if nbytes[i]:
                    copy = f"copier(out{i}.data_ptr(), {source.data_ptr()}, {nbytes[i]}, stream)"
                    self.line(f"if {copy}: out{i}.copy_(source{i})")
        else:
            self.names["sources"] = sources
            self.line(f"foreach_copy([{', '.join(f'out{i}' for i in range(len(sources)))}], sources)")
        self.give([f"out{i}" for i in range(len(sources))], instance)

    def hand_out(self, instances: Sequence[Instance], sizes: Sequence[Sequence[int] | None] | None) -> None:
        """The buffers of the first graph whose results nobody can see, cut to the call's sizes."""
        for k, instance in enumerate(instances):
            self.names[f"instance{k}"] = instance
        elsewhere = " or ".join(f"instance{k}.seen_on != stream" for k in range(len(instances)))
        self.line(f"if {elsewhere}: return MISS")
        for k, instance in enumerate(instances):
            free = " and ".join(
                f"use_count({handle}) <= {idle}"
                for handle, idle in zip(instance.outputs.handles, instance.outputs.idle)
            )
            self.line(f"if {free or True}:")
            self.replay(instance, str(k), indent="    ")
            results = []
            for i, result in enumerate(instance.outputs.results):
                self.names[f"made{k}_{i}"] = made = result.made
                wanted = (sizes[i] if sizes is not None else None) or ()
                shorter = [(dim, n) for dim, n in enumerate(wanted) if made is not None and n != made.size(dim)]
                cut = "".join(f".narrow({dim}, 0, {n})" for dim, n in shorter)
                results.append(f"made{k}_{i}.data{cut}")
            self.give(results, instance, indent="    ")

    def give(self, results: list[str], instance: Instance, indent: str = "") -> None:
        structure = instance.outputs.structure
        flat = isinstance(structure, tuple) and all(part == "T" for part in structure[1:])
        if structure == "T":
            made = results[0]
        elif flat and structure[0] is tuple:
            made = f"({', '.join(results)},)"
        elif flat and structure[0] is list:
            made = f"[{', '.join(results)}]"
        else:
            self.names["build"] = instance.outputs.build
            made = f"build(iter(({', '.join(results)},)))"
        self.line(f"{indent}return {made}")

    def function(self) -> Fast:
        body = "\n            ".join(self.lines)
        source = (
            "def fast(args, kwargs):\n"
            "    with lock:\n"
            "        try:\n"
            f"            {body}\n"
            "        except ReplayError:\n"
            "            return MISS\n"
        )
        exec(compile(source, "<gfxgraph fast path>", "exec"), self.names)
        return self.names.pop("fast")  # left in, it would hold itself: a cycle that only the collector frees
