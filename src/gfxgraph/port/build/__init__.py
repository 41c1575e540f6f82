"""build: what a HIP compiler says of each translation unit.

Enters: a repository, and a compiler where there is one.
Stays out: edits; what links; running what was compiled.

    units.py      translation units, their headers and flags
    compiler.py   one unit through the compiler; its diagnostics
    judge.py      every unit, side by side, cached by content; findings.py: what is left, with its rules
"""
