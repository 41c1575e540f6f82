"""control: branches and loops of captured graphs.

conditional.py  one of several branches, by name, index or device flag
loops.py        bounded while loops on a device predicate
"""
