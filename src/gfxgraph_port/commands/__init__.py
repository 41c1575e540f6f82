"""commands: what ``gfxgraph port`` does; like the rooms of ``gfxgraph.cli``, they alone write stdout.

Enters: arguments, the rest of this package.
Stays out: decisions.

    port.py     the group; ``audit``, ``rules``, ``rule``, ``skill``
    fix.py      ``fix`` and ``build``
    verify.py   ``verify``
    options.py  options and refusals that they share
"""
