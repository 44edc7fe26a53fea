"""A Python kernel that comes from no zygote: the guest starts it where there is none to fork it into the sandbox.

    python belljar_alone.py [--fonts DIR] [--last DIR] [MODULE...]

fd 0 /dev/null, 1/2 pipes, 3 the kernel wire. MODULEs are imported before the first cell if they are installed. DIR of
--last is where the kernel's own libraries are, for a Python that has none of its own: whatever it has itself comes first.
"""

import importlib.util
import os
import sys

WIRE = 3
EXIT_FATAL = 70


def fatal(error):
    """Tells the guest why there is no kernel."""
    import json
    import struct

    name = type(error).__name__
    message = f"Python {sys.version.split()[0]} of this sandbox cannot be used: {name}: {error}"
    text = json.dumps({"fatal": {"message": message}}).encode()
    os.write(WIRE, struct.pack("<II", 4 + len(text), len(text)) + text)
    os._exit(EXIT_FATAL)


def copy_fonts(source):
    """Matplotlib wants its cache in a directory it can write to, and takes a second to rebuild it."""
    target = os.environ.get("MPLCONFIGDIR")
    if target:
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(source):
            with open(f"{source}/{name}", "rb") as old, open(f"{target}/{name}", "wb") as new:
                new.write(old.read())


def prepare(arguments):
    if sys.version_info < (3, 10):
        raise RuntimeError("it is too old, 3.10 or newer is needed")
    while arguments and arguments[0].startswith("--"):
        option, value, *arguments = arguments
        if option == "--fonts":
            copy_fonts(value)
        elif option == "--last":
            sys.path.append(value)
    import belljar_kernel as kernel  # first: it has a lighter way to import IPython

    for name in arguments:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    kernel.prepare()
    here = os.path.dirname(os.path.abspath(__file__))
    # A user's file must not be found before; from here on it may.
    sys.path[:] = [""] + [p for p in sys.path if p and os.path.abspath(p) != here]
    return kernel


def main():
    os.umask(0o022)
    sys.dont_write_bytecode = True
    try:
        kernel = prepare(sys.argv[1:])
        sys.argv[:] = [""]
        wire = kernel.high_fd(WIRE)
        os.close(WIRE)
    except BaseException as error:
        fatal(error)
    kernel.serve(wire)


if __name__ == "__main__":
    main()
