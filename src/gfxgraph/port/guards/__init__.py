"""guards: which devices can reach a piece of code.

A guard is any condition whose outcome follows from the device's vendor or architecture. Conditions are
evaluated in a *world* (one vendor, one architecture) with three outcomes: true, false, not known. A line is
excluded from a world when a condition on its way there is false in it; "not known" never excludes.

Enters: syntax trees and directive lists.
Stays out: rules, files.
"""
