"""adapters: engines that users reach GPU graphs through, one file each.

Enters: an engine's objects, where it is installed.
Stays out: importing an engine before it is asked for; patching anything at import.
"""
