"""Starts a setuid program that lies in a volume."""

import subprocess

CLASS = "volumes"
INCIDENT = "a setuid program on a shared disk"
BLOCKED_BY = "nosuid and no_new_privs"
OUTSIDE = "nobody"


def attempt(facts):
    said = subprocess.run([facts["read_only"] + "/id"], capture_output=True, text=True).stdout
    return f"ran with euid {said.strip()}" if said.strip() == "0" else None
