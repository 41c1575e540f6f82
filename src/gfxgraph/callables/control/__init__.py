"""control: branches and loops of captured graphs.

conditional.py  one of several branches, by name, index or device flag
loops.py        bounded while loops on a device predicate: steps that read in place what the last one left
device_loop.py  such steps as one launch, where the driver has conditional nodes
"""
