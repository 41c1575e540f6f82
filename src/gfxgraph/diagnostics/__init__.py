"""diagnostics: what an error means, in English and Chinese.

Enters: text, codes, plain values to fill in.
Stays out: torch, drivers, our own exceptions (`gfxgraph.errors` imports this room, not the reverse).

    catalogue/        the entries, one TOML file each, both languages
    entries.py        reads them
    causes.py         which cause of a class it was: predicates over facts (machine_causes.toml)
expression_index.py  every expression of the catalogue, searched for by its literals
    derived_files.py  files derived from the TOML, so that it need not be read at each start
    literals.py       the literal parts of expressions, for a long stream one automaton of all
    scan.py           finds conditions in a stream of log lines
    kinds.py          what kind of line a line is (kinds.toml, components.toml)
    mentions.py       separates failures from text about failures and our own blocks, AMD's from other vendors'
    statuses.py       status codes of HIP, HSA and the libraries
    codes/            those codes, one file a library
    situation.py      finds the GPU and system that a text comes from
    libraries.py      names the package that holds a missing file (libraries.toml)
    unknown_errors.py handles unknown errors: names the component
explainer.py      explains a code, a status, an exception, a text, a scan
    explanation.py    the answer: plain data, text, JSON
    render.py         an entry and its values as text
    hooks.py          explanations of uncaught exceptions, in threads and asyncio too
"""
