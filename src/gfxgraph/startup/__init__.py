"""startup: how gfxgraph reaches a program that does not mention it.

Enters: environment variables set by ``gfxgraph run`` or by the user; the moment at which torch is imported.
Stays out: importing torch itself, decisions about hardware, anything that a program without torch would
notice.

This room is above every room that it switches on.

    path/           first on PYTHONPATH under ``gfxgraph run``; its sitecustomize runs in every process
    hook.py         waits for torch to be imported
    activation.py   enable() and disable()
    graph_class.py  the class in force
    child_environment.py  the variables that a program is started with; which torch it would import, without doing so
    stats_file.py   writes the statistics when a process ends
    supervise.py    runs a program as a child, and reports how a guarded one died
    sanitizer.py    runs a program under the vendor's memory checker
"""
