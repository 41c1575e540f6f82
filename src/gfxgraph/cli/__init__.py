"""cli: the commands, one file each; the only room that writes stdout.

Enters: arguments, everything below.
Stays out: decisions; a command asks the rooms below and prints what they say.

A file here that has a ``command`` is a command of that name. Nothing else needs editing.

    main.py           finds the commands and imports the one that is asked for
    _contract.py      what all share: options, errors, exit statuses
    _chinese.py       ``--help`` in Chinese, from help_zh.toml
    run.py            runs a program with safe graphs; with it:
    _preload.py       programs that call the graph API themselves
    _run_end.py       what it says at its end
    doctor.py         checks GPU, ROCm, PyTorch and settings; with it:
    _selftest.py      ``--selftest``
    check.py          what would break or split a capture of a function
    diff.py           where two dumps of tensors differ
    demo.py           an unmodified program, run and explained
    device.py         the GPU that decisions are based on
    status.py         settings, PyTorch, GPU, engines, for a bug report; env.py is its other name
    explain.py        explains a ROCm error
    report.py         an HTML page of a run
    port.py           audit, fix, build and verify: gfxgraph_port.commands
"""
