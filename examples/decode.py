"""Continue a prompt with a character model, once eagerly and once through a CUDA graph.

An ordinary PyTorch program for a GPU: it warms up on a side stream, captures one decode step with
torch.cuda.graph, and replays it once a character. It knows nothing of gfxgraph.

    python examples/decode.py --prompt "The Queen of Hearts" --tokens 400
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from char_model import CONTEXT, HEAD_WIDTH, HEADS, LAYERS, CharModel, load

DEVICE = "cuda"
LONGEST_TEXT = 4096
TEMPERATURE = 0.4
WARM_UP_TOKENS = 16


class Decoder:
    """The model and its static buffers: everything that ``step`` reads or writes keeps its address."""

    def __init__(self, model: CharModel, seed: int) -> None:
        self.model = model
        self.token = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.position = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.cache = torch.zeros(LAYERS, 2, HEADS, CONTEXT, HEAD_WIDTH, device=DEVICE)
        self.prompt = torch.zeros(LONGEST_TEXT, dtype=torch.int64, device=DEVICE)
        self.prompt_length = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.text = torch.zeros(LONGEST_TEXT, dtype=torch.int64, device=DEVICE)
        # Gumbel noise, drawn once: adding it before argmax samples from the softmax, and the same seed
        # gives the same text on every device, eagerly or not.
        uniform = torch.rand(LONGEST_TEXT, len(model.alphabet), generator=torch.Generator().manual_seed(seed))
        self.noise = (-(-uniform.clamp_min(1e-9).log()).log()).to(DEVICE)

    def begin(self, prompt: list[int]) -> None:
        """Go back to the start, with another prompt."""
        self.cache.zero_()
        self.position.zero_()
        self.text.zero_()
        self.prompt[: len(prompt)].copy_(torch.tensor(prompt))
        self.prompt_length.fill_(len(prompt))
        self.token.copy_(self.prompt[:1])
        self.text[:1].copy_(self.token)

    def step(self) -> None:
        """Read one character and choose the next: the prompt's, as long as there is one, else the model's."""
        logits = self.model.step(self.token, self.position, self.cache)
        self.position += 1
        chosen = (logits / TEMPERATURE + self.noise[self.position]).argmax(-1)
        chosen = torch.where(self.position < self.prompt_length, self.prompt[self.position], chosen)
        self.text.index_copy_(0, self.position, chosen)
        self.token.copy_(chosen)


def decode(decoder: Decoder, step: Callable[[], None], prompt: list[int], n_tokens: int) -> tuple[str, float]:
    """Return ``n_tokens`` characters that go on from the prompt, and how many steps a second they took."""
    decoder.begin(prompt)
    n_steps = len(prompt) + n_tokens - 1
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n_steps):
        step()
    torch.cuda.synchronize()
    rate = n_steps / (time.perf_counter() - began)
    return decoder.model.decode(decoder.text[len(prompt) : n_steps + 1].tolist()), rate


def capture(decoder: Decoder) -> torch.cuda.CUDAGraph:
    """Record one step. The warm-up runs first: libraries set themselves up outside the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step()
    return graph


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default="Alice opened the little door and")
    parser.add_argument("--tokens", type=int, default=300, help="how many characters to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    args = parser.parse_args()

    model = load(DEVICE)
    prompt = model.encode(args.prompt or "\n")
    n_tokens = max(1, min(args.tokens, LONGEST_TEXT - len(prompt)))
    if len(prompt) >= LONGEST_TEXT:
        parser.error(f"the prompt has {len(prompt)} characters; at most {LONGEST_TEXT - 1} fit")
    decoder = Decoder(model, args.seed)

    decode(decoder, decoder.step, prompt[:1], WARM_UP_TOKENS)
    eager_text, eager_rate = decode(decoder, decoder.step, prompt, n_tokens)

    decoder.begin(prompt)
    graph = capture(decoder)
    decode(decoder, graph.replay, prompt[:1], WARM_UP_TOKENS)
    graphed_text, graphed_rate = decode(decoder, graph.replay, prompt, n_tokens)

    result: dict[str, object] = {
        "text": args.prompt + graphed_text,
        "texts_equal": eager_text == graphed_text,
        "eager_tokens_per_s": eager_rate,
        "graphed_tokens_per_s": graphed_rate,
        "n_tokens": n_tokens,
        "device": torch.cuda.get_device_name(),
    }
    if args.json:
        print(json.dumps(result))
        return
    print(args.prompt + graphed_text)
    print(f"\neager:   {eager_rate:8.0f} tokens/s\ngraphed: {graphed_rate:8.0f} tokens/s")
    print(f"texts equal: {result['texts_equal']}")


if __name__ == "__main__":
    main()
