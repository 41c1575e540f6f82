"""Texts as they are shown: what must not be in them."""

import pytest

from gfxgraph.diagnostics.render import without_secrets


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["train.py", "--hf-token", "hf_abcdefgh12", "--lr", "1"], ["train.py", "--hf-token", "***", "--lr", "1"]),
        (
            ["x", "--api-key=abc", "--tokenizer", "llama", "--max-tokens", "7"],
            ["x", "--api-key=***", "--tokenizer", "llama", "--max-tokens", "7"],
        ),
        (["x", "--hf_token=1", "--password", "--verbose"], ["x", "--hf_token=***", "--password", "--verbose"]),
        (["x", "postgres://me:word@host/db", "sk-abcdefghijkl"], ["x", "postgres://***@host/db", "***"]),
    ],
)
def test_command_lines_without_secrets(command, shown):
    """What names or looks like a secret is starred; numbers of tokens and tokenizers are none."""
    assert without_secrets(command) == shown
