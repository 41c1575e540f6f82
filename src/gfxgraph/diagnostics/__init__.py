"""diagnostics: what an error means, in English and Chinese.

Enters: text, codes, plain values to fill in.
Stays out: torch, drivers, our own exceptions (`gfxgraph.errors` imports this room, not the reverse).

    catalogue/        the entries, one TOML file each, both languages
    entries.py        reads them
    index.py          every pattern of the catalogue, fast to load and to search
    patterns.py       the literal text that an expression cannot match without
    literals.py       searches a block of bytes for thousands of fixed texts at once
    lazy.py           regular expressions compiled when first needed
    derived.py        caches derived from the TOML, so that it need not be parsed at start
    common_words.txt  words too common to search for
    scan.py           finds conditions in a stream of log lines
    gates.py          separates failures from text about failures, AMD's from other vendors'
    repeats.py        skips lines that differ from earlier ones only in numbers
    ownwords.py       recognizes blocks printed by gfxgraph itself
    statuses.py       status codes of HIP, HSA and the libraries
    codes/            those codes, one file a library
    situation.py      finds the GPU and system that a text comes from
    programs.py       advice about the program that failed (programs.toml)
    lastresort.py     handles unknown errors: names the component (components.toml)
    known.py          known cases below a class (cases/)
    explain.py        explains a code, a status, an exception, a text, a scan
    explanation.py    the answer: plain data, text, JSON
    render.py         an entry and its values as text
    pages.py          an entry as a page; the list of all
    hooks.py          explanations of uncaught exceptions, in threads and asyncio too
"""
