"""Hugging Face's Llama on the simulator, small; the full size runs in tests/gpu."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from gfxgraph.cli.demo import examples_folder


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_tokens_are_equal():
    """Decoding through a graph gives the tokens that eager decoding gives."""
    script = str(examples_folder() / "hf_llama.py")
    line = [sys.executable, "-m", "gfxgraph", "run", "--simulate", script, "--json"]
    small = ["--layers", "2", "--hidden", "256", "--tokens", "12"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line + small, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tokens_equal"]
