"""Learns the host's name."""

import os

CLASS = "the host"
INCIDENT = "names of machines say who runs what"
BLOCKED_BY = "UTS namespace"


def attempt(facts):
    return "knows it" if os.uname().nodename == facts["host_name"] else None
