"""Checks on tiny models, once per process, that decoding through graphs gives this transformers' own tokens.

Problem: decoding depends on the meaning of transformers' caches, masks and processors, which names do not show. Idea:
with a version that was not tested, two models of one layer generate a few tokens in both ways before the
first call is served. If they differ, or anything raises, all calls are left to transformers, with the reason.
For versions that the tests have run with only names are checked, so that their first call needs no trial.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

from gfxgraph import adapters
from gfxgraph.hardware.versions import may_match, parse

_SIZES = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 13,
}
_MORE = {"num_key_value_heads": 1, "max_position_embeddings": 32, "eos_token_id": None, "pad_token_id": 0}

_lock = threading.RLock()
_answers: dict[str, str] = {}


def why_not(device: object) -> str:
    """Why no call is served in this process; "" if calls may be."""
    with _lock:
        if not _answers:
            version = adapters.get("transformers").version()
            _answers[version] = ""  # meanwhile, so that the tiny models' own calls are served
            reason = _try(version, device)
            _answers[version] = f"transformers {version} does not fit the adapter ({reason})" if reason else ""
        return next(iter(_answers.values()))


def _try(version: str, device: object) -> str:
    try:
        # lazily: their imports from transformers are what is being tested
        from gfxgraph_kernels.generation import decode, loop  # noqa: F401

        if may_match(parse(version), adapters.get("transformers").tested):
            return ""
        return next(_differences(device), "")
    except Exception as error:  # noqa: BLE001  (whatever an unknown version does)
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _differences(device: object) -> Iterator[str]:
    # lazily: adapters are listed and asked about where there is no torch
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    ids = torch.arange(2, 12, device=device).view(2, 5)
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for owner, config, n_padded in (
            (LlamaForCausalLM, LlamaConfig(**_SIZES, **_MORE), 0),
            (MistralForCausalLM, MistralConfig(**_SIZES, **_MORE, sliding_window=7), 2),
        ):
            model = _in_two_ways(owner)(config).to(device).eval()
            mask = torch.ones_like(ids)
            mask[0, :n_padded] = 0
            asked = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
            model.ours = None
            wanted = model.generate(ids, **asked)
            model.ours = ours = _accelerated(model)
            for _ in range(3):  # first eagerly, then as graphs
                if not torch.equal(model.generate(ids, **asked), wanted):
                    yield f"a {owner.__name__} generates different tokens with graphs"
            yield from ours.left_alone
            ours.free()


def _accelerated(model: object) -> Any:
    # lazily: the module calls this one
    from gfxgraph_kernels.generation.model import Accelerated

    return Accelerated(model)


def _in_two_ways(owner: Any) -> Any:
    """A subclass with its own loop: transformers', or through graphs if an instance has ``ours``."""
    original = getattr(owner._sample, "__wrapped__", owner._sample)

    @functools.wraps(original)
    def _sample(self: Any, *args: object, **kwargs: object) -> object:
        return (original.__get__(self) if self.ours is None else functools.partial(self.ours.sample, original))(
            *args, **kwargs
        )

    return type(owner.__name__, (owner,), {"_sample": _sample, "__module__": owner.__module__})
