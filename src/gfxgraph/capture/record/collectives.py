"""Collectives inside a capture: which segment launched one, and what waiting for it means.

Problem: an asynchronous collective runs on a stream of the library's own, and ``work.wait()`` makes the current
stream wait for an event there. A split ends the capture: a collective that nothing waits for leaves it unjoined, and
once it has ended, its events are of no capture (on CUDA "invalid argument"). Idea: note what each segment launches.
Its end waits for what the program has not; a later wait has nothing to do, since everything before a split has run.

Source: docs/decisions/0231.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.record.tensor_arguments import flat
from gfxgraph.types import OnUnsafe

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Work
    from torch.futures import Future

_ROOMS = ("c10d::", "_c10d_functional::")
_WAITS = ("wait", "synchronize", "block_current_stream")
_OUTSIDE = "torch.cuda.Stream.wait_event"


def noting(name: str, call: Callable[..., object]) -> Callable[..., object]:
    """Wrap ``call`` (operation ``name``) so that the capture notes what it launches, if it is a collective."""
    if not name.startswith(_ROOMS) or name.endswith("::wait_tensor") or not torch.distributed.is_available():
        return call

    def launch(*args: object, **kwargs: object) -> object:
        out = call(*args, **kwargs)
        session = session_here()
        if session is not None and any(tensor.is_cuda for tensor in flat(args, kwargs)):
            for launched in _launched(name, out):
                session.streams.note_launched(launched, session.n_segments)
        return out

    return launch


def _launched(name: str, out: object) -> list[object]:
    """What is to be waited for: works, or for functional collectives the results, weakly."""
    if name.startswith("_"):
        return [weakref.ref(tensor) for tensor in flat(out)]
    return [*works_of(out)]


def works_of(out: object) -> Iterator[Work]:
    """The works in what an operation gave: the same objects as the program will get.

    NCCL and RCCL give nothing to wait for where ``async_op`` is False, since torch 2.8: a null that only C++
    recognises, and that ends the process if asked.
    """
    for part in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(part, torch.ScriptObject) and part._has_method("wait"):
            work: Work | None = torch._C._distributed_c10d.Work.unbox(part)
            if work is not None:
                yield work


def wait_for(launched: object) -> None:
    """Make the current stream wait for what `noting` found."""
    if not isinstance(launched, weakref.ref):
        STOCK["work.wait"](launched)
    elif (tensor := launched()) is not None:
        torch.ops._c10d_functional.wait_tensor(tensor)


def are_used() -> bool:
    """Whether a process group has been made."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def targets() -> Targets:
    if not are_used():
        return {}
    c10d = torch._C._distributed_c10d
    return {
        **{
            f"work.{name}": (c10d.Work, name, _waiting(f"work.{name}")) for name in _WAITS if hasattr(c10d.Work, name)
        },
        "work.is_completed": (c10d.Work, "is_completed", _is_completed),
        "work.get_future": (c10d.Work, "get_future", _get_future),
        "work.future_wait": (torch._C.Future, "wait", _wait_future),
        "work.future_then": (torch._C.Future, "then", _then),
        "work.end_coalescing": (c10d.ProcessGroup, "_end_coalescing", _end_coalescing),
    }


@functools.cache  # one for all captures: it is known by identity
def _waiting(short: str) -> Callable[..., object]:
    def wait(work: Work, *args: object, **kwargs: object) -> object:
        session = session_here()
        call = STOCK[short]
        if session is None or session.policy is OnUnsafe.RAISE:
            return call(work, *args, **kwargs)
        segment = session.streams.launched_in(work)
        if segment is None:  # launched before the capture, or on the host
            return session.host_call(_OUTSIDE, lambda: call(work, *args, **kwargs))
        if segment != session.n_segments:
            return True if short == "work.wait" else None
        session.streams.note_joined(work)
        session.recorder.note_opaque()
        try:
            return call(work, *args, **kwargs)
        except RuntimeError as error:
            return session.call_failed("torch.distributed.Work.wait", error, lambda: wait(work, *args, **kwargs))
        finally:
            session.recorder.disown_new_nodes()  # the collective's own, which the tape holds

    return wait


def _is_completed(work: Work) -> bool:
    session = session_here()
    is_completed = STOCK["work.is_completed"]
    if session is None or session.policy is OnUnsafe.RAISE:
        return is_completed(work)  # type: ignore[no-any-return]
    segment = session.streams.launched_in(work)
    if segment is None:
        return session.host_call("torch.cuda.Event.query", lambda: is_completed(work), repeat=False)  # type: ignore[no-any-return]
    if segment == session.n_segments:  # a split: what is before it has run
        session.host_call("torch.cuda.Event.query", lambda: None, repeat=False)
    return True


def _get_future(work: Work) -> Future[object]:
    future: Future[object] = STOCK["work.get_future"](work)
    session = session_here()
    segment = session.streams.launched_in(work) if session is not None else None
    if segment is not None:
        session.streams.note_work(future, segment)
    return future


def _is_past(future: Future[object]) -> bool:
    """Whether a future is of a work that an earlier segment launched."""
    session = session_here()
    segment = session.streams.launched_in(future) if session is not None else None
    return segment is not None and segment != session.n_segments


def _wait_future(future: Future[object]) -> object:
    return future.value() if _is_past(future) else STOCK["work.future_wait"](future)


def _then(future: Future[object], callback: Callable[[Future[object]], object]) -> Future[object]:
    session = session_here()
    if session is None or session.streams.launched_in(future) is None:
        return STOCK["work.future_then"](future, callback)
    if _is_past(future):
        made: Future[object] = torch.futures.Future(devices=[torch.device("cuda", session.device_index)])
        made.set_result(callback(future))
    else:
        made = STOCK["work.future_then"](future, callback)
    session.streams.note_work(made, session.n_segments)
    return made


def _end_coalescing(group: ProcessGroup, *device: torch.device) -> Work | None:
    work: Work | None = STOCK["work.end_coalescing"](group, *device)
    session = session_here()
    if session is not None and work is not None and not any(each.type == "cpu" for each in device):
        session.streams.note_launched(work, session.n_segments)
    return work
