"""port: audit, plan, fix and verify a CUDA codebase for ROCm.

Enters: source text, paths, plain data from the environment.
Stays out: torch, drivers, and the code under audit, which is read and never imported.

``model`` holds the vocabulary, ``readers`` turn files into trees, ``guards`` decide which devices a line
can reach, ``rules`` hold one pattern a file, ``audit`` runs them, and the rest presents or acts on findings.
"""
