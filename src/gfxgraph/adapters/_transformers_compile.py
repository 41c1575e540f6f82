"""A compiled step with bitwise identical results.

Problem: the graph of a Llama step has eight hundred kernels, most of them tiny. Inductor fuses them,
but its kernels round differently, and in half precision a different last bit soon means a different token. Idea: let
Inductor fuse only what cannot round differently (additions, products, casts, copies, each rounded as if
alone), and keep torch's own kernels for the rest: reductions, exponentials, matrix products,
attention. Then compare: the compiled step is used only if its scores and what it writes to the cache
are bitwise identical to the model's own step.

It is compiled in a thread, on a decoder of its own, while generation continues with the model's own kernels.
Tokens do not change when it takes over, because no bit does.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig

from gfxgraph.adapters import _transformers_attention as attention
from gfxgraph.adapters._transformers_attention import MET_A_CAPTURE, same_bits
from gfxgraph.adapters._transformers_choice import Stops, TokenChoice
from gfxgraph.adapters._transformers_decode import COMPILING
from gfxgraph.adapters._transformers_loop import Request
from gfxgraph.errors import first_line
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.adapters._transformers_decode import Decoder

N_COMPARED = 6
"""Steps to compare before a compiled one is used."""

MOST_TRIES, WAIT_S = 5, 1.0
"""Inductor waits for the device many times, which fails while another thread captures; then everything is tried
again,
this often and after this many seconds. What Inductor has compiled is cached.
"""

EXACT = {
    "emulate_precision_casts": True,  # also keeps products and sums separate
    "eager_numerics.division_rounding": True,
    "pattern_matcher": False,
    "shape_padding": False,
    "triton.cudagraphs": False,
    "max_autotune": False,
    "coordinate_descent_tuning": False,
}
"""Inductor's settings for a compiled step; those that this torch does not have are left out."""

_compiling = threading.Lock()
"""One compilation at a time: Inductor's settings and torch's recompilation stance are process-wide."""


def start(decoder: Decoder, make: Callable[[], Decoder], mode: object, done: Callable[[Decoder, str], None]) -> Any:
    """Compile a decoder's step in a thread.

    Args:
        decoder: the active one; it knows the model's arguments.
        make: makes another decoder like it.
        mode: True, or "any" for Inductor's own kernels without comparison.
        done: gets the new decoder and "", or the active one and the reason to keep it.
    """
    model, extras, has_positions = decoder.model, dict(decoder.extras), decoder.has_positions
    n_threads = torch.get_num_threads()

    def work() -> None:
        torch.set_num_threads(n_threads)  # thread-local, and a compiled function is guarded on it
        for n_left in reversed(range(MOST_TRIES)):
            try:
                with _compiling, torch.cuda.device(model.device), torch.inference_mode(False), torch.no_grad():
                    with torch.cuda.stream(torch.cuda.Stream()):
                        twin = make()
                        why = _compile(twin, model, extras, has_positions, mode)
                        torch.cuda.current_stream().synchronize()
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises, generation goes on without it
                twin, why = decoder, f"it cannot be compiled ({first_line(getattr(error, 'inner_exception', error))})"
                if n_left and any(said in str(error) for said in MET_A_CAPTURE):
                    time.sleep(WAIT_S)
                    continue
            break
        if why:
            process.log.info("the step of %s keeps the model's own kernels: %s", type(model).__name__, why)
        done(decoder if why else twin, why)

    thread = threading.Thread(target=work, name=COMPILING)
    thread.start()
    return thread


def _compile(twin: Decoder, model: object, extras: dict[str, Any], has_positions: bool, mode: object) -> str:
    """Give ``twin`` a compiled step; return the reason if that is impossible."""
    _read_some_prompt(twin, model, extras, has_positions)
    compiled = compiled_step(model, exact=mode != "any")
    greedy = TokenChoice((), False, None, None, False, (), (), ())
    for step in range(N_COMPARED):
        if twin.cache.full_windows or twin.cache.place.n_cached >= twin.capacity - 1:
            break
        twin.forward(twin.model_step)
        expected, written = twin.logits.clone(), _written(twin)
        twin.forward(compiled)
        if mode != "any" and not (same_bits(twin.logits, expected) and all(map(same_bits, _written(twin), written))):
            return f"its compiled step {step} does not give identical bits"
        twin.choose(greedy, twin.logits)
        twin.cache.place.n_cached += 1
    twin.compiled = compiled
    return ""


def _read_some_prompt(twin: Decoder, model: Any, extras: dict[str, Any], has_positions: bool) -> None:
    length = max(1, min(8, twin.capacity // 2, twin.cache.window - N_COMPARED if twin.cache.window else 8))
    generator = torch.Generator().manual_seed(1)
    n_words = model.config.get_text_config(decoder=True).vocab_size
    ids = torch.randint(n_words, (twin.batch, length), generator=generator)
    kwargs: dict[str, Any] = extras | {"attention_mask": torch.ones_like(ids).to(model.device)}
    if has_positions:
        kwargs["position_ids"] = torch.arange(length, device=model.device).expand(twin.batch, -1)
    choice = TokenChoice((), False, None, None, False, (), (), ())
    stops = Stops(None, None, (), False)
    config = GenerationConfig()
    request = Request(ids.to(model.device), kwargs, config, choice, stops, twin.capacity)
    # Not on the capture stream, which may be capturing for the active decoder.
    twin.read_prompt(request, as_graph=False)
    twin.choose(choice, twin.logits)


def _written(decoder: Decoder) -> list[Tensor]:
    """What the last step wrote to the cache."""
    at = decoder.position
    return [held.index_select(2, at).clone() for layer in decoder.cache.layers for held in (layer.keys, layer.values)]


def compiled_step(model: Any, exact: bool) -> Callable[..., Any]:
    """The model's call, compiled for the shapes of its first call."""

    def step(**inputs: object) -> Any:
        return model(**inputs, return_dict=True).logits

    # Its own code object: torch counts compilations, and gives up, per code object.
    own = types.FunctionType(
        step.__code__.replace(co_name=f"step_{id(step):x}"), step.__globals__, "step", None, step.__closure__
    )
    own.__kwdefaults__ = step.__kwdefaults__
    if not exact:
        return torch.compile(own, dynamic=False, options={"triton.cudagraphs": False})
    _define_ops()
    return torch.compile(own, dynamic=False, backend=_exact_backend)


def _exact_backend(module: object, example_inputs: list[Any]) -> Any:
    # lazily: Inductor takes seconds to import
    from torch._inductor.compile_fx import compile_fx

    keep_own_kernels(module)
    return compile_fx(module, example_inputs, config_patches=known_settings())


def known_settings() -> dict[str, Any]:
    """`EXACT`, limited to the settings of this torch's Inductor."""
    # lazily: Inductor takes seconds to import
    from torch._inductor import config

    known = config.get_config_copy()
    return {name: value for name, value in EXACT.items() if name in known}


# -- operations that keep torch's own kernels ----------------------------------------------------------

_UNARY = frozenset("silu gelu gelu_tanh sigmoid tanh exp cos sin sqrt softplus".split())
_library: Any = None


def _define_ops() -> None:
    """Register the operations, once per process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("gfxgraph", "FRAGMENT")
    _library.define("unary(Tensor x, str name) -> Tensor")
    _library.define("mean(Tensor x, int[] dim, bool keepdim) -> Tensor")
    _library.define("attention(Tensor q, Tensor k, Tensor v, Tensor mask, float scale, str way) -> Tensor")
    _library.impl("attention", attention.attend, "CompositeExplicitAutograd")
    torch.library.register_fake("gfxgraph::attention", lambda q, *_: q.new_empty(q.shape), lib=_library)
    _library.define("softmax(Tensor x, int dim, ScalarType? dtype) -> Tensor")
    _library.impl("unary", _unary, "CompositeExplicitAutograd")
    _library.impl("mean", lambda x, dim, keepdim: x.mean(dim, keepdim), "CompositeExplicitAutograd")
    _library.impl("softmax", lambda x, dim, dtype: torch.softmax(x, dim, dtype=dtype), "CompositeExplicitAutograd")
    torch.library.register_fake("gfxgraph::unary", lambda x, name: torch.empty_like(x), lib=_library)
    torch.library.register_fake("gfxgraph::mean", lambda x, dim, keepdim: x.mean(dim, keepdim), lib=_library)
    torch.library.register_fake(
        "gfxgraph::softmax", lambda x, dim, dtype: torch.empty_like(x, dtype=dtype or x.dtype), lib=_library
    )


def _unary(x: Tensor, name: str) -> Tensor:
    if name == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    made: Tensor = (getattr(torch, name, None) or getattr(F, name))(x)
    return made


def keep_own_kernels(module: Any) -> int:
    """Replace a captured module's reductions and exponentials by torch's own; return how many."""
    _define_ops()
    n = 0
    for node in list(module.graph.nodes):
        replacement = _replacement(node)
        if replacement is None:
            continue
        op, args = replacement
        with module.graph.inserting_before(node):
            new = module.graph.call_function(op, args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        n += 1
    module.recompile()
    return n


def _replacement(node: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The operation that replaces a node, with its arguments; None to keep the node."""
    ops = torch.ops.gfxgraph
    if node.op == "call_method":
        name = node.target
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
    else:
        return None
    args, kwargs = node.args, dict(node.kwargs)
    if name == "scaled_dot_product_attention":
        return attention.replacement(node)
    if name == "gelu":
        how = kwargs.get("approximate", "none")
        return ops.unary, (args[0], "gelu_tanh" if how == "tanh" else "gelu")
    if name == "silu" and not kwargs.get("inplace") and len(args) == 1:
        return ops.unary, (args[0], "silu")
    if name in _UNARY and len(args) == 1 and not kwargs:
        return ops.unary, (args[0], name)
    if name == "mean":
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        if dim is None or kwargs.keys() - {"dim", "keepdim"}:
            return None
        return ops.mean, (args[0], [dim] if isinstance(dim, int) else list(dim), keepdim)
    if name == "softmax" and not kwargs.keys() - {"dim", "dtype", "_stacklevel"}:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if isinstance(dim, int) and len(args) <= 2:
            return ops.softmax, (args[0], dim, kwargs.get("dtype"))
    return None
