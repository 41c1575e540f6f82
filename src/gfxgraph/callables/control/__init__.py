"""control: branches, loops and compositions of captured graphs.

conditional.py  one of several branches, by name, index or device flag
loops.py        bounded while loops on a device predicate; several steps in one launch
compose.py      captured graphs joined into one launch
flags.py        reading device values without waiting for later work
rehearse.py     running a function before its capture and undoing its effects
"""
