"""hardware: which GPU, which ROCm, which defects; from sysfs, files and tables.

Enters: paths under an injectable root, version texts, settings.
Stays out: torch, driver calls, anything that could wake or hang a GPU.

    machine.py        the machine as a tree of files, real or recorded
    topology.py       GPUs as KFD describes them in sysfs
    access.py         whether this user may open the GPU
    software.py       installed torch, ROCm and kernel module, read from files
    time_limit.py     a call that may hang, with a limit
    versions.py       versions and ranges of them
    architectures.py  what is known of each gfx target (architectures.toml)
chosen_device.py  the device that decisions are made for
    defect_environment.py  what decisions about defects depend on
    defects.py        known defects and what is done about each (defects.toml)
    advice.py         ``explain``, ``diagnose`` and ``install_diagnostics`` for this machine
    facts.py          what is true of a machine, as one flat mapping
    bad_versions.py   versions known to be bad (bad_versions.toml)
    findings.py       what doctor says: the rows of the table of causes that hold
"""
