"""fix: edits that leave NVIDIA's path as it was, proved by folding the guards and comparing.

Enters: source text, rule hits.
Stays out: what a rule looks for; that is the rule's business.

    run.py                finds what can be fixed, fixes it in memory, hands back a patch
    edits.py              an edit, and why a place is left to a person
    gate.py               the identity gate: folded for NVIDIA, old and new must be the same
    loop.py               fix and build until nothing changes; compiled.py: edits that a compiler asks for
    builds.py             the project's own build behind USE_HIP; toolkit/: files of the stand-in folder
    cmake.py              edits of CMake files
    compat.py             headers that give CUDA's names HIP's meaning
"""
