"""Decode with Hugging Face transformers' Llama, eagerly and through a CUDA graph, and compare the tokens.

An ordinary program for a GPU that knows nothing of gfxgraph. The weights are random, from a fixed seed, so
nothing is downloaded; the size is that of a small real model.

    gfxgraph run examples/hf_llama.py                # AMD GPU
    gfxgraph run --allow-cuda examples/hf_llama.py   # NVIDIA GPU

Written for transformers 5.17. Its static cache keeps its own running length in a tensor that every step,
warm-ups and replays included, moves on by one; past the cache's end an index is out of range. So the cache
is reset before each text, and its length holds the prompt and all tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

DEVICE, DTYPE = "cuda", torch.float16
N_PROMPT, N_WARM_UP = 32, 3


class Decoder:
    """The model and the static buffers of one decode step."""

    def __init__(self, layers: int, hidden: int, n_tokens: int) -> None:
        config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=hidden * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            num_key_value_heads=max(1, hidden // 128),
            vocab_size=32_000,
            max_position_embeddings=16_384,
        )
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(config).to(DEVICE, DTYPE).eval()
        self.cache = StaticCache(config=config, max_cache_len=N_PROMPT + n_tokens + N_WARM_UP)
        self.prompt = torch.randint(0, config.vocab_size, (1, N_PROMPT), device=DEVICE)
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
        self.position = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.tokens = torch.zeros(1, N_PROMPT + n_tokens + N_WARM_UP + 1, dtype=torch.int64, device=DEVICE)

    def begin(self) -> None:
        """Read the prompt, eagerly, and choose the first token."""
        self.cache.reset()
        logits = self.model(self.prompt, past_key_values=self.cache, use_cache=True).logits
        self.token.copy_(logits[:, -1:].argmax(-1))
        self.position.fill_(N_PROMPT)
        self.tokens.zero_()
        self.tokens[:, N_PROMPT : N_PROMPT + 1] = self.token

    def step(self) -> None:
        """Read one token and choose the next, the likeliest; all in place."""
        positions = self.position[None]
        output = self.model(self.token, past_key_values=self.cache, position_ids=positions, use_cache=True)
        self.token.copy_(output.logits[:, -1:].argmax(-1))
        self.position += 1
        self.tokens.index_copy_(1, self.position, self.token)


def decode(decoder: Decoder, step: Callable[[], None], n_tokens: int) -> tuple[list[int], float]:
    """Return the tokens chosen, and how many a second."""
    decoder.begin()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n_tokens - 1):  # begin() has chosen the first
        step()
    torch.cuda.synchronize()
    rate = (n_tokens - 1) / (time.perf_counter() - began)
    return decoder.tokens[0, N_PROMPT : N_PROMPT + n_tokens].tolist(), rate


def capture(decoder: Decoder) -> torch.cuda.CUDAGraph:
    """Record one step, after a few on a side stream."""
    decoder.begin()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(N_WARM_UP):
            decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step()
    return graph


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    args = parser.parse_args()

    decoder = Decoder(args.layers, args.hidden, args.tokens)
    decode(decoder, decoder.step, min(args.tokens, 8))  # libraries set themselves up at the first steps
    eager_tokens, eager_rate = decode(decoder, decoder.step, args.tokens)

    graph = capture(decoder)
    decode(decoder, graph.replay, min(args.tokens, 8))
    graphed_tokens, graphed_rate = decode(decoder, graph.replay, args.tokens)

    equal = eager_tokens == graphed_tokens
    if args.json:
        result = {
            "tokens_equal": equal,
            "n_tokens": args.tokens,
            "n_distinct_tokens": len(set(graphed_tokens)),
            "eager_tokens_per_s": eager_rate,
            "graphed_tokens_per_s": graphed_rate,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
        }
        print(json.dumps(result))
    else:
        print(f"eager:   {eager_rate:8.1f} tokens/s")
        print(f"graphed: {graphed_rate:8.1f} tokens/s")
        print(f"tokens equal: {equal} ({args.tokens} tokens, {len(set(graphed_tokens))} distinct)")
    raise SystemExit(0 if equal else 1)


if __name__ == "__main__":
    main()
