"""Write a llama model with random weights that llama.cpp loads: 0.4 million parameters, always the same.

    python tiny_gguf.py MODEL.gguf [SEED]

What it says is nonsense, but it is the same nonsense on every run of the same kernels, so that a run under
the preload library can be held against one without. Standard library only.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT = 2, 128, 4, 256, 256
ALIGNMENT = 32
F32, F16 = 0, 1
# Types of values and of tokens in the file format.
U32, I32, FLOAT, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
WORDS = "the a of to and in is it you that he was for on are with as I his they be at one have this from or had by"
# Far enough apart that no rounding of the last bit changes which token is most likely.
SPREAD = 0.15


def tokens() -> list[tuple[str, float, int]]:
    """Pieces of text with score and type: SentencePiece's special ones, all bytes, a few words."""
    special = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    every_byte = [(f"<0x{value:02X}>", 0.0, BYTE) for value in range(256)]
    words = [(f"\u2581{word}", -float(rank), NORMAL) for rank, word in enumerate(WORDS.split())]
    letters = [(chr(code), -100.0 - code, NORMAL) for code in range(ord("a"), ord("z") + 1)]
    return special + every_byte + words + letters


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def metadata(vocabulary: list[tuple[str, float, int]]) -> list[bytes]:
    def number(key: str, value: int) -> bytes:
        return entry(key, U32, struct.pack("<I", value))

    return [
        entry("general.architecture", STRING, text("llama")),
        entry("general.name", STRING, text("random weights")),
        number("general.file_type", F16),
        number("llama.context_length", CONTEXT),
        number("llama.embedding_length", WIDTH),
        number("llama.block_count", LAYERS),
        number("llama.feed_forward_length", HIDDEN),
        number("llama.attention.head_count", HEADS),
        number("llama.attention.head_count_kv", HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT, struct.pack("<f", 1e-5)),
        number("llama.rope.dimension_count", WIDTH // HEADS),
        number("llama.vocab_size", len(vocabulary)),
        entry("tokenizer.ggml.model", STRING, text("llama")),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, [text(piece) for piece, _, _ in vocabulary])),
        entry("tokenizer.ggml.scores", ARRAY, array(FLOAT, [struct.pack("<f", score) for _, score, _ in vocabulary])),
        entry("tokenizer.ggml.token_type", ARRAY, array(I32, [struct.pack("<i", kind) for _, _, kind in vocabulary])),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
    ]


def shapes(n_tokens: int) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape, innermost dimension first; one-dimensional ones are norms."""
    made: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (WIDTH, n_tokens),
        "output_norm.weight": (WIDTH,),
        "output.weight": (WIDTH, n_tokens),
    }
    for layer in range(LAYERS):
        here = f"blk.{layer}."
        made |= {f"{here}{name}_norm.weight": (WIDTH,) for name in ("attn", "ffn")}
        made |= {f"{here}attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        made |= {f"{here}ffn_{name}.weight": (WIDTH, HIDDEN) for name in ("gate", "up")}
        made[f"{here}ffn_down.weight"] = (HIDDEN, WIDTH)
    return made


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def model(seed: int) -> bytes:
    vocabulary = tokens()
    source = random.Random(seed)  # noqa: S311  (weights, not secrets)
    infos, data = [], b""
    for name, shape in shapes(len(vocabulary)).items():
        infos.append(
            text(name)
            + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            + struct.pack("<IQ", F32 if len(shape) == 1 else F16, len(data))
        )
        if len(shape) == 1:
            data += padded(struct.pack(f"<{shape[0]}f", *[1.0] * shape[0]))
        else:
            n = shape[0] * shape[1]
            data += padded(struct.pack(f"<{n}e", *(source.gauss(0, SPREAD) for _ in range(n))))
    pairs = metadata(vocabulary)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs))
    return padded(head + b"".join(pairs) + b"".join(infos)) + data


def main(path: str, seed: str = "1") -> None:
    Path(path).write_bytes(model(int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
