"""generation: transformers' ``generate`` with its decoding steps as graphs, for ``gfxgraph.adapters.transformers``.

Enters: models of transformers, the arguments of their loops.
Stays out: which models, and transformers' own names, which the adapter replaces.

    model.py          one accelerated model, and which decoder serves a call
    decode.py         generation as two graphs; loop.py: stopping and streaming
    cache.py          keys and values at fixed addresses
    choice.py         logits processors and stopping criteria that graphs can contain
    version_check.py  checks on tiny models that this version's tokens come out
"""
