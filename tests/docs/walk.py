"""The first minute of somebody who knows nothing: the README's first command, its one paste, and a look at the dashboard."""

import os
import re
import signal
import subprocess
import time
import urllib.request

from blocks import blocks, lines
from page import HERE, LIMIT, REPOSITORY, WORK, Failed, environment, new_home, others


def healthy():
    try:
        return urllib.request.urlopen("http://localhost:8775/health", timeout=5).status == 200
    except OSError:
        return False


def walk():
    readme = (REPOSITORY / "README.md").read_text()
    first, paste = [block for block in blocks("README.md", readme) if block.language == "sh"][:2]
    address = re.search(r"<(http://localhost:8775/[^>]*)>", readme)[1]
    if lines(first.text)[0] != "make run" or len(lines(first.text)) != 1:
        raise Failed(f"{first.place}: the first command is not `make run` alone")
    env = environment(new_home(WORK / "newcomer"))
    log = WORK / "make-run.log"
    # What is built already stays built; otherwise this is a clean clone and a person's first command in it.
    server = subprocess.Popen(["bash", "-c", first.text], cwd=REPOSITORY, env=env, stdout=open(log, "wb"),
                              stderr=subprocess.STDOUT, start_new_session=True)
    try:
        end = time.monotonic() + 5 * LIMIT
        while not healthy():
            if server.poll() is not None or time.monotonic() > end:
                raise Failed(f"`make run` does not serve:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        if "Belljar serves MCP at http://localhost:8775/mcp" not in log.read_text():
            raise Failed(f"`make run` does not say where it serves:\n{log.read_text()[-4000:]}")
        pasted = subprocess.run(["bash", "-ec", paste.text], cwd=WORK, env=env, capture_output=True, text=True, timeout=LIMIT)
        if pasted.returncode:
            raise Failed(f"{paste.place}: the paste failed:\n{pasted.stdout}{pasted.stderr}")
        seen = subprocess.run(["node", str(HERE / "figure.mjs"), address], env=env | {"BELLJAR": ""},
                              capture_output=True, text=True, timeout=2 * LIMIT)
        if seen.returncode:
            raise Failed(f"the figure is not on the dashboard:\n{pasted.stdout}\n{seen.stdout}{seen.stderr}")
        # Ctrl-C, as the terminal sends it to everybody in it.
        os.killpg(server.pid, signal.SIGINT)
        server.wait(LIMIT)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
    end = time.monotonic() + LIMIT
    while (left := others()) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        raise Failed("left behind: " + ", ".join(left.values()))
