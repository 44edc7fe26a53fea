"""Prints the files that a zygote reads on its way to its first fork, in the order in which it wants them.

    python3 -S prefetch.py MODULE...     with our kernel and the template's packages on PYTHONPATH
"""

import importlib
import os
import sys

wanted = {}
libraries_came = False


def want(path):
    if isinstance(path, str) and path.startswith("/"):
        wanted.setdefault(path)


def want_mapped():
    """Libraries bring others along, which nobody opens by name."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            want(line[line.find("/"):].rstrip("\n") if "/" in line else None)


def hear(event, arguments):
    global libraries_came
    if event == "open":
        want(arguments[0])
    elif event == "import":
        if libraries_came:
            libraries_came = False
            want_mapped()
        if arguments[1]:  # the file of a module that is a library, about to be loaded
            want(arguments[1])
            libraries_came = True


want_mapped()
for module in list(sys.modules.values()):
    want(getattr(module, "__cached__", None) or getattr(module, "__file__", None))
sys.addaudithook(hear)

import belljar_kernel

for name in sys.argv[1:]:
    importlib.import_module(name)
belljar_kernel.prepare()
want_mapped()
with open(1, "w", closefd=False) as out:
    out.write("".join(f"{path}\n" for path in wanted if os.path.isfile(path) and not path.startswith("/proc/")))
