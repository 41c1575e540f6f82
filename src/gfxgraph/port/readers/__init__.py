"""readers: from bytes to something a rule can ask.

One reader a kind of file. A reader never raises for what a file contains: what it cannot read it reports.

Enters: text.
Stays out: rules, guards, directories.
"""
