"""Run a small Llama that serves, in the simulator, and take a picture of its report (needs Chromium): see.png.

python tools/make_see_picture.py [--dark FILE.png]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = Path(__file__).parent.parent / "docs" / "images" / "see.png"
SIZE = "1180,1640"
SERVE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import gfxgraph

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=512, max_position_embeddings=256, eos_token_id=None,
)
model = LlamaForCausalLM(config).cuda().eval()
ranker = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).cuda()
history = []


def decode(ids, cache, position):
    logits = model(ids, past_key_values=cache, position_ids=position[None]).logits[:, -1]
    if logits.max().item() > 1e4:
        logits = logits.clamp(max=1e4)
    return logits


@torch.no_grad()
def main():
    rank = gfxgraph.graphed(ranker, dynamic={"input": {0: "rows"}}, buckets=[4, 8, 16, 32])
    cache = StaticCache(config=config, max_cache_len=64)
    ids = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    for _ in range(2):
        decode(ids, cache, position)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = decode(ids, cache, position)
    for step in range(48):
        graph.replay()
        probabilities = torch.softmax(logits.float(), -1)
        ids.copy_(torch.topk(probabilities, 8).indices[:, :1])
        position.add_(1)
        history.append(probabilities.clone())
        rank(torch.randn(1 + (7 * step) % 30, 128, device="cuda"))


main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dark", type=Path, help="a picture of the dark page, too")
    asked = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("make_see_picture: no Chromium on the PATH")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "serve.py").write_text(SERVE, encoding="utf-8")
        run = [sys.executable, "-m", "gfxgraph", "run", "--simulate=hip", "--report", "out.html", "serve.py"]
        subprocess.run(run, cwd=folder, check=True)
        page = Path(folder, "out.html")
        dark = Path(folder, "dark.html")
        text = page.read_text(encoding="utf-8")
        dark.write_text(text.replace('store.get("theme")', '"dark"'), encoding="utf-8")
        for source, target in ((page, TARGET), (dark, asked.dark)):
            if target is not None:
                flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
                flags += [f"--user-data-dir={folder}/profile", f"--screenshot={target.absolute()}"]
                subprocess.run([browser, *flags, source.as_uri()], check=True, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
