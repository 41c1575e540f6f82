"""hardware: which GPU, which ROCm, which defects; from sysfs, files and tables.

Enters: paths under an injectable root, version texts, settings.
Stays out: torch, driver calls, anything that could wake or hang a GPU.
"""
