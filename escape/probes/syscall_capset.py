"""Takes capabilities back."""

CLASS = "system calls"
INCIDENT = "capabilities that stayed in the permitted or inheritable set (CVE-2022-24769)"
BLOCKED_BY = "capabilities"


def attempt(facts):
    status = open("/proc/self/status").read()
    sets = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    return f"capability sets: {sets}" if any(int(value, 16) for value in sets) else None
