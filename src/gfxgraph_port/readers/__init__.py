"""readers: from bytes to something a rule can ask.

One reader a kind of file. A reader never raises for what a file contains: what it cannot read it reports.

Enters: text.
Stays out: rules, guards, directories.

    python.py        Python: a tree with parents and resolved names
    cpp.py           C++ and CUDA: every preprocessor arm parsed
    directives.py    the preprocessor's view of such a file
    text.py          shell, CMake, Make, Dockerfiles, by line
    requirements.py  requirement lists, pyproject, setup.cfg, Pipfile, conda
"""
