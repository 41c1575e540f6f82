"""diagnostics: what an error means, in English and Chinese.

Enters: text, codes, plain values to fill in.
Stays out: torch, drivers, exceptions of our own (errors stands on this room, not under it).
"""
