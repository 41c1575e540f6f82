"""reporting: what runs in graphs, what it costs, and which source line made it; as plain data, text, HTML.

Enters: captured graphs, the driver that made them, clocks.
Stays out: capturing and replaying, the command line.

    inspection.py  a capture as plain data
    origins.py     which module and line of the program made each operation of a capture
read_capture.py  reads one from a graph, a graphed callable, a compiled region, the process; where graph memory is
    profile_text.py  a profile as tables, and for Perfetto; without torch
    profile.py     GPU time inside graphs, by module, line and kernel
    dump.py        copies of tensors inside a graph; two such dumps compared
capture_check.py  finds the parts of a function that cannot be captured, in the simulator
    write_process_file.py  a process's data for ``gfxgraph run --report``
    process_files.py  reads that data, without torch
    run_line.py    the line with which a run ends and its page begins
    page.py        all of it as one HTML page (page.html)
    rewrites.py    suggests replacements (rewrites.toml) for operations that cannot be captured
"""
