"""The code that runs in the interpreter of the code under test.

Standard library and torch only, Python 3.9 or newer. Imports are relative, for it has two names: `perfci.worker` and an
injected one.
"""
