"""Asks the scheduler for turns as short as the server's, to be let in as early."""

from lib import reached

CLASS = "system calls"
INCIDENT = "a neighbour that is let in first at every turn keeps the rest waiting"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("sched_setattr", 0, 0, 0)
