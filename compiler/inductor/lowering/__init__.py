"""How nodes run through Inductor on a CPU, one file a node; a node without a file runs its reference, traced."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
