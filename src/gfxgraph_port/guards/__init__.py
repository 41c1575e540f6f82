"""guards: which devices can reach a piece of code.

A guard is any condition whose outcome follows from the device's vendor or architecture. Conditions are
evaluated in a *world* (one vendor, one architecture) with three outcomes: true, false, not known. A line is
excluded from a world when a condition on its way there is false in it; "not known" never excludes.

Enters: syntax trees and directive lists.
Stays out: rules, files.

    worlds.py      what a condition is evaluated in, and what can come out
    names.py       what a name says about the device
    conditions.py  Python: what a condition comes to
    python.py      Python: which guard keeps a line from running
    cpp.py         C++ and CUDA: which preprocessor arms a build reaches
    text.py        shell, CMake, Make, Dockerfiles
"""
