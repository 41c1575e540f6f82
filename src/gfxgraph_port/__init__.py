"""gfxgraph_port: audit, fix, build and verify a CUDA codebase for ROCm.

Enters: source text, paths, plain data from the environment.
Stays out: torch, drivers, and the code under audit, which is read and compiled, and never imported or run.

    model.py     the vocabulary: rules, hits, findings
    rules/       what the audit looks for, as tables; registry.py reads them, checks.py answers what they ask,
                 rule_api.py is what a function of a rule imports
    readers/     from files to trees
    guards/      which devices a line can reach
    files.py     how the files of a tree are opened and written
    project.py   the repository: kinds of files and how they refer to each other
    facts.py     what one file cannot know, gathered over all
    archs.py     AMD architectures that a rule may ask about
    engine.py    runs the rules on one file; bounded.py, budget.py: bounds on its time
    audit.py     runs it on a repository; changes.py: only what differs from a revision
    phases.py    the phases of a port
    render.py    an audit as text
    hipify.py    CUDA's names as HIP's, from hipify's tables
    build/       each unit through a HIP compiler, the project's own build, the list of what is left
    SKILL.md     how a coding agent ports
    fix/         edits, and the gate they pass
    rocm/        what a ported program calls (`gfxgraph.rocm`); commands/: ``gfxgraph port``

ARCHITECTURE.md is its map.
"""
