"""Entry into the interpreter of the code under test: `python boot.py parent|worker ADDRESS …`.

Nothing of perfci needs to be installed there.
"""

import importlib.util
import os
import sys


def load() -> None:
    """Load this folder as the package `perfci_worker`."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        "perfci_worker", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None  # this file is there
    module = importlib.util.module_from_spec(spec)
    sys.modules["perfci_worker"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load()
    from perfci_worker import parent, serve  # type: ignore[import-not-found]  # loaded just now
    from perfci_worker.imports import stem  # type: ignore[import-not-found]

    if sys.argv[1] == "parent":
        parent.main(sys.argv[2], stem.enter)
    else:
        serve.main(sys.argv[2])
