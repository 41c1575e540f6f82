"""startup: how gfxgraph reaches a program that does not mention it.

Enters: environment variables set by ``gfxgraph run`` or by the user; the moment at which torch is imported.
Stays out: importing torch itself, decisions about hardware, anything that a program without torch would
notice.

``path/`` is the folder that ``gfxgraph run`` puts first on PYTHONPATH: Python imports its
``sitecustomize`` in every process it starts, children and spawned workers included.
``hook`` waits there for torch. ``torch_build`` tells which torch is installed without importing it.

This room stands above every room that it switches on: ``activation`` is enable() and disable(), ``plugins`` what
engines call in their processes, ``names`` the class in force, ``bisect_run`` the process of ``gfxgraph bisect``.
"""
