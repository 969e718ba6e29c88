"""Formats of training data: each module reads one.

Modules import the library that they need when they are used, and `feedrail` imports none of them.
"""
