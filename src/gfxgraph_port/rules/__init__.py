"""rules: what the audit looks for; a table a phase, and the functions of those rules that must think.

Enters: one file's text, lines and syntax tree, and what is known of its repository.
Stays out: running what is audited.

``bad`` and ``good`` of a table are documentation and test: the first must fire, the second must leave every rule
silent. ``seen`` is where in a public repository the rule was right. A table that says by itself what to look for (see
``gfxgraph_port.checks``) has no function here.

    environment.toml, detection.toml, translation.toml, architecture.toml, build.toml, libraries.toml, compile.toml,
    graphs.toml, verification.toml   the rules, by phase
    dependencies.py  packages and images             translation.py  what hipify leaves in C++
    devices.py       how Python tells devices apart
    triton.py        Triton, warp sizes              build.py        setup scripts and recipes
    inductor.py      torch.compile and its settings  graphs.py       captures
    verification.py  tests, and changes without a guard
    _common.py       what several of them share
"""
