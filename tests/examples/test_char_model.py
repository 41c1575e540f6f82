"""The model that the demo decodes with: one step at a time it says what it says of the whole text."""

from __future__ import annotations

import sys

import pytest

from gfxgraph.cli.demo import examples_folder

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def char_model():
    sys.path.insert(0, str(examples_folder()))
    try:
        import char_model
    finally:
        sys.path.pop(0)
    return char_model


@torch.no_grad()
def test_steps_agree_with_the_whole_text(char_model):
    """Logits from the static cache equal those of the parallel pass, to rounding."""
    model = char_model.load("cpu")
    ids = torch.tensor(model.encode("'What a curious feeling!' said Alice"))
    cache = torch.zeros(char_model.LAYERS, 2, char_model.HEADS, char_model.CONTEXT, char_model.HEAD_WIDTH)
    steps = [model.step(ids[i : i + 1], torch.tensor([i]), cache) for i in range(len(ids))]
    torch.testing.assert_close(torch.stack(steps), model(ids[None])[0], rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_it_has_learnt(char_model):
    """The weights shipped predict the book: under 1 nat a character, where guessing costs more than 4."""
    model = char_model.load("cpu")
    text = (examples_folder() / "alice.txt").read_text(encoding="utf-8")[10_000:10_256]
    ids = torch.tensor(model.encode(text))[None]
    loss = torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    assert loss < 1.0


def test_the_alphabet_round_trips(char_model):
    """Text of the book survives; characters outside the alphabet become spaces."""
    model = char_model.load("cpu")
    assert model.decode(model.encode("Off with her head!")) == "Off with her head!"
    assert model.decode(model.encode("a€b7")) == "a b "
