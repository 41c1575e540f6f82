"""build: what a HIP compiler says of each translation unit, and what the project's own build says of the whole.

Enters: a repository, and a compiler where there is one.
Stays out: edits; running what was built.

    units.py      translation units, their headers and flags
    compiler.py   one unit through the compiler; its diagnostics
    judge.py      every unit, side by side, cached by content; findings.py: what is left, with its rules
    real.py      the project's build, configured, compiled and linked in a copy
"""
