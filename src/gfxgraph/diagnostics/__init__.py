"""diagnostics: what an error means, in English and Chinese.

Enters: text, codes, plain values to fill in.
Stays out: torch, drivers, exceptions of our own (errors stands on this room, not under it).

    catalogue/        the entries, one TOML file each, both languages
    entries.py        reads them
    index.py          every pattern of the catalogue, quick to load and to search
    patterns.py       the literal text that an expression cannot match without
    literals.py       thousands of fixed texts sought in a block of bytes at once
    lazy.py           regular expressions compiled when first needed
    derived.py        files derived from the TOML, so that a start need not parse it
    common_words.txt  words too common to search for
    scan.py           finds conditions in a stream of log lines
    gates.py          tells failures from lines that only speak of them, AMD's from others'
    repeats.py        lines that differ from earlier ones in numbers alone
    ownwords.py       blocks that gfxgraph itself printed
    statuses.py       status codes of HIP, HSA and the libraries
    codes/            those codes, one file a library
    situation.py      which GPU and system a text comes from
    programs.py       advice about the program that failed (programs.toml)
    lastresort.py     what can be said of an unknown error: its component (components.toml)
    explain.py        explains a code, a status, an exception, a text, a scan
    explanation.py    the answer: plain data, text, JSON
    render.py         an entry and its values as text
    pages.py          an entry as a page; the list of all
    hooks.py          explanations of uncaught exceptions, in threads and asyncio too
"""
