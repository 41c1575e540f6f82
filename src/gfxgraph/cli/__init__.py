"""cli: the commands, one file each; the only room that writes stdout.

Enters: arguments, everything below.
Stays out: decisions; a command asks the rooms below and prints what they say.

A file here that has a ``command`` is a command of that name. Nothing else needs editing.
"""
