"""Modules imported once for all workers.

`asked` tells what a suite asks for, `stem` imports it, `inherited` says why a module must not be inherited.
"""


class Finder:
    """A finder of modules of perfci's own."""
