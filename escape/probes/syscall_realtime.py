"""Becomes a real-time process that nothing else preempts."""

import os

CLASS = "system calls"
INCIDENT = "one container with SCHED_FIFO stopped a whole machine"
BLOCKED_BY = "capabilities and rlimits"
NEEDS = "a cgroup that may have real-time processes"


def attempt(facts):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return "runs with SCHED_FIFO"
