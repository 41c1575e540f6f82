"""fix: edits that leave NVIDIA's path as it was, proved by folding the guards and comparing.

Enters: source text, rule hits.
Stays out: what a rule looks for; that is the rule's business.
"""
