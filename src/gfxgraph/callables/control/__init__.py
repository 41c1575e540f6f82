"""control: branches, loops and compositions of captured graphs.

conditional.py  one of several branches, by name, index or device flag
loops.py        bounded while loops on a device predicate; several steps in one launch
compose.py      captured graphs joined into one launch
flags.py        device values read by the host without waiting for more than them
rehearse.py     running a function ahead of its capture and undoing what it did
"""
