"""Could gain rights by executing a setuid program."""

from lib import LIBC

CLASS = "system calls"
INCIDENT = "CVE-2021-4034: pkexec, setuid root, in every container image that had polkit"
BLOCKED_BY = "no_new_privs"


def attempt(facts):
    return "no_new_privs is off" if LIBC.prctl(39, 0, 0, 0, 0) == 0 else None
