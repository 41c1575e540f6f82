"""The fast path: one call of a known signature with as little Python as possible.

Problem: comparing shapes, strides and dtypes in Python costs a microsecond per tensor, as much as a
replay. Idea: torch's own C++ guards, made for compiled code, compare all tensors in one call and
torch's settings in another; after them comes straight-line code, generated for the number of
arguments and results, with every address and size already looked up.

A fast path returns ``MISS`` if anything differs from when it was made; the slow path then finds
out what. It never decides anything itself, and it exists only if a replay is one launch.

Source: measured (benchmarks/bench_callables.py); decision 0007.

unpack arguments ── guards ── copies in ── launch ── results
                                  └── or one launch of all three (joined_launch.py)

Names of a graph or a launch end with the index of their graph in the ring; without an index they mean the
graph whose results are copied out.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.buffers import GraphOutput, copy_all, from_before, is_dense, last_rows
from gfxgraph.callables.joined_launch import (
    CopyLaunches,
    addresses,
    change_refused,
    copy_kernel,
    joined_call,
    launch_lines,
    part,
    takes,
)
from gfxgraph.callables.signature import MISS, Call, Fast, function_modes, twins_of
from gfxgraph.capture import torchs_graph
from gfxgraph.capture.torchs_graph import launch_of
from gfxgraph.driver.small_copies import MOST
from gfxgraph.errors import ReplayError
from gfxgraph.types import ReplayMode

if TYPE_CHECKING:
    from gfxgraph.callables.arena import Arena
    from gfxgraph.callables.captured import Capture, Captured, Instance, Route
    from gfxgraph.callables.joined_launch import JoinedCall


_REBIND = "if stream != launches.stream: launches.to(stream)"
# Like ``with lock``, at less than half its cost. An interrupt may come before the lock is taken, but none before the
# release: Python looks for signals after a call, and that is the first one.
IN_TURN = """def fast(args, kwargs):
    try:
        acquire()
        {}
    except ReplayError:
        return MISS
    finally:
        try: release()
        except RuntimeError: pass
"""


class Unpacker:
    """Writes a function's source, which begins by unpacking the arguments; collects the values of its names."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"MISS": MISS, "inf": math.inf}  # as an infinite argument is written
        self.lines: list[str] = []
        self.n_taken = 0
        self.indent = ""

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Unpack the arguments and check that they have the same structure; False if that is too complex."""
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

    def has_kinds(self, tensors: Sequence[Tensor], which: Sequence[int]) -> None:
        """Check the dtypes, layouts and devices of these tensors, no two of which are one, and torch's settings."""
        self.names["settings"] = torch_names.GlobalStateGuard().check
        self.names["check"] = torch_names.TensorGuards(
            *[tensors[i] for i in which], dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
        self.line(f"if not check({', '.join(f't{i}' for i in which)}) or not settings(): return MISS")

    def made(self, frame: str) -> Fast:
        body = "\n        ".join(self.lines)
        exec(compile(frame.format(body), "<gfxgraph fast path>", "exec"), self.names)
        return self.names.pop("fast")  # left in, it would refer to itself: a cycle that only the collector frees


class GuardWriter(Unpacker):
    """Writes a function that checks all that a call depends on, and runs in its arena's turn."""

    def __init__(self, arena: Arena, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.arena, self.tensors, self.twins = arena, tensors, twins_of(tensors)
        self.names |= {
            "ReplayError": ReplayError,
            "arena": arena,
            "acquire": arena.lock.acquire,
            "release": arena.lock.release,
            "settings": torch_names.GlobalStateGuard().check,
            "raw_stream": torch_names._cuda_getCurrentRawStream,
            "is_capturing": torch.cuda.is_current_stream_capturing,
            "device": arena.device_index,
        }
        self.taken = "()"
        self._located: list[int] = []
        """The arguments whose addresses ``places`` holds."""

    def guards(self, world: Any, asks_by_name: bool = False, are_checked: bool = False) -> None:
        taken = ", ".join(f"t{i}" for i in range(self.n_taken))
        self.taken = f"({taken},)" if taken else "()"
        if are_checked:
            self.line("if not settings(): return MISS")
        elif self.n_taken:
            self.has_kinds(self.tensors, sorted(set(self.twins)))
        else:  # the tensor guards also check inference mode
            self.names["inference"] = torch.is_inference_mode_enabled
            is_on = torch.is_inference_mode_enabled()
            self.line(f"if not settings() or inference() is not {is_on}: return MISS")
        self._modes()
        self.line("stream = raw_stream(device)")
        # The default stream, 0, is never captured.
        self.line("if stream != arena.last_raw or (stream and is_capturing()): return MISS")
        if torch.cuda.device_count() > 1:
            # The default stream's handle is 0 on every device: the driver would use the current device's.
            self.names["current_device"] = torch_names._cuda_getDevice
            self.line("if not stream and current_device() != device: return MISS")
        self.names["contexts"] = self.arena.contexts
        self.line("if device not in contexts.devices: contexts.give(device)")
        for i, first in enumerate(self.twins):
            if i != first:
                self.line(f"if t{i} is not t{first}: return MISS")
        for i in range(self.n_taken if asks_by_name else 0):
            self.line(f"if t{i}.__dict__: return MISS")
        self.names["is_same"] = world.is_same
        self.line("if not is_same(): return MISS")
        if getattr(world, "asks_guards", ""):
            self.names["is_same_for"] = world.is_same_for
            self.line("if not is_same_for(args, kwargs): return MISS")
        homes = world.written_homes
        if homes and self.n_taken:
            # The storages are alive and unmoved, so an address outside them is still outside.
            self.names |= {"homes": homes, "clear": [None]}
            self._locate(range(self.n_taken))
            self.line("if places != clear[0]:")
            for i in range(self.n_taken):
                self.line(f"    if t{i}.untyped_storage().data_ptr() in homes: return MISS")
            self.line("    clear[0] = places")

    def _modes(self) -> None:
        """Check that no mode intercepts operations, and that the stack of function modes (a default device is one) is
        the same.
        """
        n = torch_names._len_torch_function_stack()
        self.names |= {"n_function": torch_names._len_torch_function_stack, "forward_ad": torch.autograd.forward_ad}
        self.line(f"if n_function() != {n} or forward_ad._current_level >= 0: return MISS")
        if not self.n_taken:  # the tensors' check compares dispatch keys as the thread sees them, modes among them
            self.names["n_seeing"] = torch_names._len_torch_dispatch_stack
            self.line("if n_seeing(): return MISS")
        if n:
            self.names |= {"function_modes": function_modes, "modes": function_modes()}
            self.line("if function_modes() != modes: return MISS")

    def _locate(self, which: Iterable[int]) -> None:
        """Make ``places`` hold the addresses of these arguments, unless it already does."""
        which = list(which)
        if which and which != self._located:
            self._located = which
            self.line(f"places = {addresses([f't{i}' for i in which])}")

    def function(self) -> Fast:
        """The fast path, whole."""
        return self.made(IN_TURN)


class Writer(GuardWriter):
    """Writes the function that replays."""

    def __init__(self, entry: Captured, capture: Capture, route: Route, tensors: Sequence[Tensor]) -> None:
        super().__init__(entry.arena, tensors)
        arena = entry.arena
        self.entry, self.capture = entry, capture
        self.kernel = copy_kernel(arena.state, arena.device_index)
        self.launches = CopyLaunches(arena.state, arena.last_raw)
        has_halves = any(t.dtype is torch.complex32 for t in (*tensors, *capture.first.outputs.made))
        self.names |= {
            "mark": route.mark,
            "launches": self.launches,
            "launch": launch_of(arena.state.base),
            "foreach_copy": copy_all
            if has_halves
            else torch_names._foreach_copy_,  # has no kernel for complex halves
            "empty_like": torch.empty_like,
            "use_count": torch_names._storage_Use_Count,
        }
        self.sizes, self.repeats_last = route.result_sizes, route.repeats_last
        self.n_checks = 0
        """Lines before any copy or launch."""

    # -- arguments ------------------------------------------------------------------------------------

    @property
    def _is_padded(self) -> bool:
        return any(static.tensor.size() != t.size() for static, t in zip(self.capture.inputs.statics, self.tensors))

    def copy_in(self, joined: bool = False) -> None:
        """Copy every argument into its buffer, or into the part of it that is not padding.

        Args:
            joined: leave the small ones to the graph.
        """
        if not self.capture.inputs.statics or self.launches_nothing:
            return
        if self.entry.shared.in_place:
            for i, static in enumerate(self.capture.inputs.statics):
                self.line(f"if t{i}.data_ptr() != {static.tensor.data_ptr()}: return MISS")
            return
        self.names["buffers"] = self.capture.inputs.buffers
        if self._is_padded:
            self.names["fill"] = self.capture.inputs.fill
            self.line(f"if buffers.filled_for is not mark: fill({self.taken}, {self.repeats_last}, mark)")
            self.line("else:")
            self.indent = "    "
        else:
            self.line("buffers.filled_for = mark")
        self._copies_in(joined)
        if self.repeats_last:
            self._repeat_last()
        self.indent = ""

    def _pairs_in(self) -> dict[int, tuple[Tensor, Tensor]]:
        """For each argument that is copied: its target and the call's tensor."""
        pairs = zip(self.capture.inputs.statics, self.tensors, self.twins)
        return {i: (static.target(t)[0], t) for i, (static, t, first) in enumerate(pairs) if i == first}

    def _small(self) -> list[int]:
        """The arguments that a joined graph copies."""
        return [i for i, pair in self._pairs_in().items() if takes(*pair)]

    def _copies_in(self, joined: bool) -> None:
        pairs = self._pairs_in()
        light = [i for i, pair in pairs.items() if self.kernel is not None and takes(*pair)]
        self._launch_copies("in", {f"t{i}": pairs[i] for i in light} if not joined else {})
        copied = [i for i in pairs if i not in light]
        if not copied:
            self.line("pass")
            return
        self.names["statics"] = [pairs[i][0] for i in copied]
        self.line(f"foreach_copy(statics, ({', '.join(f't{i}' for i in copied)},))")

    def _launch_copies(self, way: str, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Emit launches of copies.

        Args:
            way: "in", to the graph's memory, or "back".
            pairs: target and source, by name of the call's tensor among them, whose address is set in each call.
        """
        self.names["refused"] = self.launches.refused
        for at in range(0, len(pairs), MOST):
            these, name = list(pairs)[at : at + MOST], f"{way}{at}"
            assert self.kernel is not None
            copies = self.launches.prepare(self.kernel, [part(*pairs[tensor]) for tensor in these])
            self.names |= {name: copies.launch, f"{name}_words": copies.words}
            for k, tensor in enumerate(these, MOST * (way == "back")):
                self.line(f"{name}_words[{k}] = {tensor}.data_ptr()")
            self.names[f"{name}_fixed"] = [pairs[tensor][way == "back"] for tensor in these]
            tensors = f"[{', '.join(these)}]"
            both = f"{tensors}, {name}_fixed" if way == "back" else f"{name}_fixed, {tensors}"
            self.line(f"if {name}(): refused({both})")

    def _repeat_last(self) -> None:
        """Repeat the last row of the copied data in all of its padding, one dim after the other."""
        by_dim: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for static, given in zip(self.capture.inputs.statics, self.tensors):
            for dim, padding, last in last_rows(static.tensor.detach(), given.size()):
                by_dim.setdefault(dim, []).append((padding, last))
        for dim in sorted(by_dim):
            self.names[f"padding{dim}"] = [padding for padding, _ in by_dim[dim]]
            self.names[f"last{dim}"] = [last for _, last in by_dim[dim]]
            self.line(f"foreach_copy(padding{dim}, last{dim})")

    # -- the launch -----------------------------------------------------------------------------------

    @property
    def launches_nothing(self) -> bool:
        """Whether the function only hands tensors on, as dropout does in evaluation."""
        return not any(step.n_nodes for step in self.capture.first.graph._program.segments)

    def replay(self, instance: Instance, k: str = "", indent: str = "") -> None:
        """Inline the graph's replay: a Python frame costs a tenth of a launch."""
        graph, replay = f"graph{k}", f"replay{k}"
        self.names[graph], self.names[replay] = instance.graph, instance.graph.replay
        unless = ""
        if instance.graph._guard is not None:  # at tier 1 each replay first checks for freed memory
            self.names[f"pointers{k}"] = instance.graph._guard.pointers
            unless = f"pointers{k}.is_dirty"
        for text in torchs_graph.replay_lines(graph, f"{replay}()", unless):
            self.line(indent + text)

    def join(self, instance: Instance, results: Sequence[GraphOutput]) -> bool:
        """Whether ``instance`` is launched with its copies as one graph: of the arguments and of ``results``."""
        entry = self.entry
        if self._is_padded or entry.shared.in_place or any(self._cut(i) for i in range(len(results))):
            return False
        if self.launches_nothing:
            return False
        into = [pair for pair in self._pairs_in().values() if takes(*pair)]
        made = [result.made.detach() for result in results if result.made is not None]
        back = [(source, source) for source in made if takes(source, source)]
        return joined_call(entry, instance, into, back) is not None

    def replay_joined(
        self, instance: Instance, joined: JoinedCall | None, k: str = "", indent: str = "", out: Sequence[int] = ()
    ) -> None:
        """Emit one launch; first update the addresses of arguments (``places``) and results ``out`` (``outs``) in the
        exec.
        """
        assert joined is not None
        refused = functools.partial(change_refused, self.entry)
        graph, n = instance.graph, len(self._small())
        for text in launch_lines(self.names, k, graph, joined.launched, joined.at, n, len(out), refused):
            self.line(indent + text)

    # -- results --------------------------------------------------------------------------------------

    def _cut(self, i: int) -> list[tuple[int, int]]:
        """The (dim, size) pairs to which result ``i`` is cut; includes sizes that it already has."""
        return list(enumerate((self.sizes[i] if self.sizes is not None else None) or ()))

    def _fresh(self, instance: Instance) -> dict[int, Tensor]:
        """Allocate caller-owned memory for every result that the graph makes; return what must be copied there."""
        sources = {}
        for i, result in enumerate(instance.outputs.results):
            if result.made is None:
                continue
            source = result.made.detach()
            for dim, n in self._cut(i):
                source = source.narrow(dim, 0, n)
            sources[i] = source
            self.names[f"source{i}"] = source
            self.line(f"out{i} = {self._empty(i, source)}")
        return sources

    def _empty(self, i: int, source: Tensor) -> str:
        """An expression that makes a tensor like ``source``, bypassing the dispatcher if possible, as compiled code
        does.
        """
        like = torch.empty_like(source)
        size = tuple(like.size())  # torch.Size is not accepted
        empty = torch_names._empty_strided_cuda
        try:
            made = empty(size, like.stride(), like.dtype) if empty is not None else None
        except RuntimeError:  # a torch without it for this device
            made = None
        if made is None or made.device != like.device:
            return f"empty_like(source{i})"
        self.names |= {"empty_strided": empty, f"size{i}": size, f"stride{i}": like.stride()}
        self.names[f"dtype{i}"] = like.dtype
        expression = f"empty_strided(size{i}, stride{i}, dtype{i})"  # on the current device
        if torch.cuda.device_count() == 1:
            return expression
        return f"{expression} if current_device() == device else empty_like(source{i})"

    def launch_joined(self, instance: Instance) -> None:
        """Emit one launch that copies the arguments in and every small result into caller-owned memory."""
        sources = self._fresh(instance)
        light = [i for i, source in sources.items() if takes(source, source)]
        self._locate(self._small())
        if light:
            self.line(f"outs = {addresses([f'out{i}' for i in light])}")
        if instance.twin is None:
            self.replay_joined(instance, instance.joined, out=light)
        else:
            # The last result often lives until this one exists: two locations alternate, and each exec keeps one.
            self.names["turn"] = [0]
            self.line("if outs == at_b[1] or (turn[0] and outs != at[1]):")
            self.line("    turn[0] = 0")
            self.replay_joined(instance, instance.twin, "_b", indent="    ", out=light)
            self.line("else:")
            self.line("    turn[0] = 1")
            self.replay_joined(instance, instance.joined, indent="    ", out=light)
        self._copy_rest(sources, light)
        self._give_back()
        self.give(self._named(instance), instance)

    def copy_out(self, instance: Instance) -> None:
        """Copy every result into caller-owned memory."""
        if self.launches_nothing:
            self.names["graph"] = instance.graph
            for text in (torchs_graph.decrement("graph"), "if left < 0: return MISS", torchs_graph.store_n("graph")):
                self.line(text)
        else:
            self.replay(instance)
        sources = self._fresh(instance)
        # The caller's copy of a dense result has its strides (torch.empty_like).
        light = [i for i, source in sources.items() if self.kernel is not None and takes(source, source)]
        self._launch_copies("back", {f"out{i}": (sources[i], sources[i]) for i in light})
        self._copy_rest(sources, light)
        self._give_back()
        self.give(self._named(instance), instance)

    def _give_back(self) -> None:
        """Copy what the function wrote to its arguments back to the caller's tensors."""
        if self.entry.mutates and not self.entry.shared.in_place:
            statics = self.capture.inputs.statics
            self.names["written"] = [statics[i].target(self.tensors[i])[0] for i in self.entry.mutates]
            self.line(f"foreach_copy([{', '.join(f't{i}' for i in self.entry.mutates)}], written)")

    def _named(self, instance: Instance) -> list[str]:
        """An expression for each result: memory of its own, or what was there before the call."""
        found = []
        for i, result in enumerate(instance.outputs.results):
            if result.made is not None:
                found.append(f"out{i}")
            elif result.of_input >= 0 and result.layout[0]:
                found.append(f"t{result.of_input}")
            else:
                self.names |= {"from_before": from_before, f"result{i}": result}
                self.line(f"out{i} = from_before(result{i}, {self.taken})")
                found.append(f"out{i}")
        return [found[first] for first in instance.outputs.twins]

    def _copy_rest(self, sources: dict[int, Tensor], light: Sequence[int]) -> None:
        rest = [i for i in sources if i not in light]
        if rest:
            self.names["sources"] = [sources[i] for i in rest]
            self.line(f"foreach_copy([{', '.join(f'out{i}' for i in rest)}], sources)")

    def hand_out(self, instances: Sequence[Instance], is_joined: bool) -> None:
        """Return the buffers of the first graph whose results nothing refers to, cut to the call's sizes."""
        for k, instance in enumerate(instances):
            self.names[f"instance{k}"] = instance
        elsewhere = " or ".join(f"instance{k}.seen_on != stream" for k in range(len(instances)))
        self.line(f"if {elsewhere}: return MISS")
        if is_joined:
            self._locate(self._small())
        for k, instance in enumerate(instances):
            free = " and ".join(
                f"use_count({handle}) <= {idle}"
                for handle, idle in zip(instance.outputs.handles, instance.outputs.idle)
            )
            self.line(f"if {free or True}:")
            if is_joined:
                self.replay_joined(instance, instance.joined, str(k), indent="    ")
            else:
                self.replay(instance, str(k), indent="    ")
            self.indent = "    "
            for i, result in enumerate(instance.outputs.results):
                if result.made is not None:
                    self.names[f"made{k}_{i}"] = result.made
                    shorter = [(dim, n) for dim, n in self._cut(i) if n != result.made.size(dim)]
                    cut = "".join(f".narrow({dim}, 0, {n})" for dim, n in shorter)
                    self.line(f"out{i} = made{k}_{i}.data{cut}")
            self.give(self._named(instance), instance)
            self.indent = ""

    def give(self, results: list[str], instance: Instance) -> None:
        structure = instance.outputs.structure
        flat = isinstance(structure, tuple) and all(part == "T" for part in structure[1:])
        if structure == "T":
            made = results[0]
        elif flat and results and structure[0] is tuple:
            made = f"({', '.join(results)},)"
        elif flat and structure[0] is list:
            made = f"[{', '.join(results)}]"
        else:
            self.names["build"] = instance.outputs.build
            made = f"build(iter([{', '.join(results)}]))"
        self.line(f"return {made}")

    def function(self) -> Fast:
        if self.launches.copies:
            self.lines.insert(self.n_checks, _REBIND)
        return super().function()


MOST_UNASKED = 64
"""Calls of one signature that run eagerly without asking again whether they must."""
EAGER = """def fast(args, kwargs):
        {}
        if is_asked() or is_capturing(): return MISS
        result = fn(*args, **kwargs)
        count(why)
        return result
"""


def make_eager(
    fn: Callable[..., Any],
    count: Callable[[str], None],
    why: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
) -> Fast | None:
    """Make the fast path for calls like this one that cannot be graphs: the function, counted with its reason."""
    writer, firsts = Unpacker(), sorted(set(twins_of(tensors)))
    if not tensors or not writer.takes(args, kwargs):
        return None
    try:
        writer.has_kinds(tensors, firsts)
    except RuntimeError:  # a tensor whose layout the guards do not know
        return None
    asked = itertools.cycle((False,) * MOST_UNASKED + (True,)).__next__
    writer.names["is_capturing"] = torch.cuda.is_current_stream_capturing
    writer.names |= {"fn": fn, "count": count, "why": why, "is_asked": asked}
    return writer.made(EAGER)


def make_fast(entry: Captured, route: Route, call: Call) -> Fast | str:
    """Make the fast path for calls like this one, which take this route; or say why they need the slow one."""
    shared, tensors = entry.shared, call.tensors
    hot = shared.options.mode is ReplayMode.HOT
    capture = entry.capture
    assert capture is not None
    instances = capture.ring if hot else [capture.first]
    why = next((why for each in instances or entry.instances() if (why := _why_slow(each))), "")
    written = [tensors[i] for i in entry.mutates if not shared.in_place]
    if written and (hot or route.repeats_last or any(t.requires_grad for t in written)):
        why = why or "it writes to an argument"
    if any(s.span is not None for s in capture.inputs.statics) or not all(is_dense(t) for t in tensors if t.is_cuda):
        why = why or "an argument has gaps in its memory"
    if not all(t.is_cuda for t in tensors):
        why = why or "an argument is in host memory"
    writer = Writer(entry, capture, route, tensors)
    if written and writer._is_padded:
        why = why or "it writes to an argument that is padded"
    if not why and not writer.takes(call.args, call.kwargs):
        why = "an argument is neither a tensor nor a plain constant"
    if why:
        return why
    writer.guards(entry.world, shared.front is not None and shared.front.does_ask_by_name)
    if entry.is_ready is not None:
        writer.names["is_ready"] = entry.is_ready
        writer.line("if not is_ready(): return MISS")
    writer.n_checks = len(writer.lines)
    sample_every = entry.arena.state.settings.trusted_replay_sample_interval
    if sample_every and shared.options.mode is ReplayMode.STANDARD:  # these take the slow path again
        writer.names["is_sampled"] = itertools.cycle((False,) * (sample_every - 1) + (True,)).__next__
        writer.line("if is_sampled(): return MISS")
    first = capture.first
    is_joined = all([writer.join(each, () if hot else first.outputs.results) for each in instances])
    writer.copy_in(joined=is_joined)
    if hot:
        writer.hand_out(instances, is_joined)
    if hot and (not entry.all_held or _why_slow(first)):
        writer.line("return MISS")
    elif is_joined and writer.join(first, first.outputs.results):
        writer.launch_joined(first)
    else:  # in hot mode all results are held: they are copied, as by default
        if hot and is_joined:
            writer.copy_in()
        writer.copy_out(first)
    return writer.function()


def _why_slow(instance: Instance) -> str:
    """Why this graph's replays need the slow path; "" if they do not."""
    results = instance.outputs.results
    if not instance.graph.is_plain:
        return "a replay is more than one launch"
    if any(r.is_host for r in results):
        return "a result is in host memory"
    if instance.outputs.is_shared:
        return "results share memory"
    return "" if all(is_dense(r.made) for r in results if r.made is not None) else "a result has gaps in its memory"
