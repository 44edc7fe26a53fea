"""Makes more files than it may."""

import os
import shutil

CLASS = "resources"
INCIDENT = "empty files cost the kernel memory that no size limits"
BLOCKED_BY = "inodes of the file system"


def attempt(facts):
    directory = facts["work"] + "/many"
    os.mkdir(directory)
    try:
        for number in range(facts["inodes"] * 2):
            os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY))
        return f"{facts['inodes'] * 2} files"
    finally:
        shutil.rmtree(directory)
