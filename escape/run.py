#!/usr/bin/env python3
"""The escape suite: every known way out of a sandbox, tried in real ones.

    escape/run.py [--docs] [--only TEXT] [--servers root,user,user-plain,docker,browser]

Each file in probes/ is one technique. It is tried from an interpreter, from a command and from a process in the
background, in sandboxes of root's server, of an ordinary user's with cgroups and without, of a container engine's, and
where a browser is; and outside of any sandbox, where it must succeed, so that none is blocked by being broken. Fails if
one gets out that weaknesses.toml does not name.
Needs root. The engine is started for this and ended; where it cannot run, that is said and the rest goes on.

BELLJAR names the binary (default: target/release/belljar). Templates are those of BELLJAR_HOME, by default this
machine's own.
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

import browser  # noqa: E402
import needs  # noqa: E402
import table  # noqa: E402
from host import Host, Refusal, canaries, through, without  # noqa: E402
from server import BELLJAR, NoEngine, NotHere, Server  # noqa: E402

PAGE = ROOT / "docs/security.md"
EVERY_SERVER = "root,user,user-plain,docker,browser"
NETWORKS = ("allowlist", "open")
WAYS = ("interpreter", "command", "background")
# What a browser's filter allows to begin with, and what in namespaces of its own, over which it has every capability.
BROWSER_WAYS = {"browser": False, "browser's own namespaces": True}


def load_probes(only):
    probes = {}
    for path in sorted((HERE / "probes").glob("*.py")):
        if only in path.stem:
            spec = importlib.util.spec_from_file_location(f"probe_{path.stem}", path)
            probes[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(probes[path.stem])
    # What uses up a sandbox comes last.
    return dict(sorted(probes.items(), key=lambda item: item[1].CLASS == "resources"))


INSIDE = "/volumes/suite/inside.py"


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def from_interpreter(server, order, sandbox):
    context = sandbox or server.call("create_context", name="escape")[1]["context_id"]
    # The same process, not a child: a way in of its own, from the zygote.
    code = f"import runpy, sys; sys.argv = ['inside', 'run', {order!r}]; runpy.run_path({INSIDE!r}, run_name='__main__')"
    return lines(server.call("run_code", context_id=context, code=code, timeout=600)[1]["stdout"])


def from_command(server, order, sandbox):
    named = {"session_id": sandbox} if sandbox else {}
    result = server.call("execute_command", command="python3", args=[INSIDE, "run", order], timeout=600, **named)[1]
    return lines(result["stdout"])


def from_background(server, order, sandbox):
    done, named = "/workspace/escape-results", {"session_id": sandbox} if sandbox else {}
    arguments = [INSIDE, "run", order, done]
    started = server.call("execute_command", command="python3", args=arguments, background=True, **named)[1]
    session, process = started["session_id"], started["process_id"]
    while started["status"] == "running":
        started = server.call("execute_command", session_id=session, process_id=process, wait=10)[1]
    return lines(server.call("execute_command", session_id=session, command="cat", args=[done])[1]["stdout"])


def from_browser(server, order):
    """From where Chromium would run, by the stand-in for it."""
    sandbox = server.call("sandbox_create")[1]["sandbox_id"]

    def run(script, *arguments):
        arguments = ["-c", script, "sh", *arguments]
        return server.call("execute_command", session_id=sandbox, command="sh", args=arguments, timeout=600)[1]["stdout"]
    run(f'printf %s "$1" > {browser.ORDER}', order)
    try:
        server.call("browser_goto", sandbox_id=sandbox, url="about:blank")
    except Refusal as refused:
        # It does not answer as a browser does. Whoever was never asked did not start either.
        if not run(f"ls {browser.ORDER}-taken"):
            raise SystemExit(f"the stand-in for a browser did not start: {refused.said}") from None
    said = run(f"while [ ! -e {browser.RESULTS} ] && [ ! -s {browser.RESULTS}-said ]; do sleep 0.2; done; cat {browser.RESULTS}*")
    if not lines(said):
        raise SystemExit(f"the stand-in for a browser: {said}")
    return lines(said)


def work_in(host, user, directory):
    """What somebody does next in a directory that a sandbox wrote to: a server is started there, asked for its tools and
    used. Returns the tools, which settings would change."""
    # On the host a server of containers is like any other.
    server = Server(host, "root" if user == "docker" else user, directory)
    try:
        context = server.call("create_context", name="next")[1]["context_id"]
        server.call("run_code", context_id=context, code="import json; print(json.dumps(1))")
        server.call("list_files", context_id=context, path="/volumes/project")
        return json.dumps([tool["name"] for tool in server.request("tools/list", {})["result"]["tools"]])
    finally:
        server.close()


def through_tools(host, user, server, probes, facts):
    """Each with a context of its own."""
    found = []
    for name, probe in probes.items():
        context = server.call("create_context", name=name)[1]["context_id"]

        def call(tool, **arguments):
            if tool == "work_in":
                return work_in(host, user, arguments["path"])
            return server.call(tool, context_id=context, **arguments)[0]
        found.append({"probe": name, **through(probe, call, facts)})
        for left in ("written", "executed"):
            Path(facts["host_directory"], left).unlink(missing_ok=True)
        host.empty_project()
    return found


def through_weakened(host, user, probes, facts):
    """Each with a server of its own, which lacks something."""
    for name, probe in probes.items():
        if user == "docker":
            yield {"probe": name, "escaped": None, "answer": "the engine isolates"}
            continue
        server = Server(host, user, lacking=without(probe), settings=getattr(probe, "SETTINGS", {}))
        # One that does not answer got nowhere either, but it has to be ended.
        limit = threading.Timer(60, server.process.kill)
        limit.start()

        def call(tool, **arguments):
            try:
                context = server.call("create_context", name=name)[1]["context_id"]
                return server.call(tool, context_id=context, **arguments)[0]
            except (SystemExit, BrokenPipeError) as ended:
                raise Refusal("the server ended", str(ended)) from None
        try:
            yield {"probe": name, **through(probe, call, facts)}
        finally:
            limit.cancel()
            server.close()


def networks(probe):
    """The networks that it runs with, of which "" is none."""
    return getattr(probe, "NETWORK", "").split(", ")


def ways(user, probe):
    """From where it is tried in one server's sandboxes."""
    if user == "browser":
        return BROWSER_WAYS if not hasattr(probe, "TOOL") and not hasattr(probe, "NETWORK") else ()
    if hasattr(probe, "TOOL"):
        return ("tools",)
    return [f"{way}, {network}".removesuffix(", ") for way in WAYS for network in networks(probe)]


def attack(host, user, probes):
    """probe → way → result, in sandboxes of one server."""
    facts = {**host.facts, "work": "/workspace", "tmp": "/tmp", "read_only": "/volumes/offered", "patience": 60,
             "templates": "/templates/", "proxy_port": 3128, "socks_port": 1080,
             "project_inside": "/volumes/project", "own_paths": [
                 "/proc", "/dev", "/workspace", "/outputs", "/tmp", "/memfd", "/volumes/suite", "/volumes/project"]}
    inner = {name: probe for name, probe in probes.items() if not hasattr(probe, "TOOL")}
    weakened = {name: probe for name, probe in probes.items() if hasattr(probe, "WITHOUT")}
    tools = {name: probe for name, probe in probes.items() if hasattr(probe, "TOOL") and name not in weakened}
    neighbours = [name for name, probe in inner.items() if hasattr(probe, "neighbour")]
    host.order(f"{user}-beside", [], facts, neighbours)
    for network in ("", *NETWORKS):
        names = [name for name, probe in inner.items() if network in networks(probe)]
        host.order(f"{user}-{network}", names, facts)
    host.order(f"{user}-nested", [name for name, probe in inner.items() if "" in networks(probe)], facts | {"nested": True})
    order, beside, nested = (f"/volumes/suite/{user}-{what}.json" for what in ("", "beside", "nested"))
    server, found = Server(host, user), {name: {} for name in probes}
    try:
        waiting = server.call("execute_command", command="python3", args=[INSIDE, "neighbour", beside], background=True)[1]
        said = waiting["stdout"]
        while "ready" not in said:
            more = server.call("execute_command", session_id=waiting["session_id"], process_id=waiting["process_id"], wait=10)[1]
            said += more["stdout"]
            assert more["status"] == "running", more
        if user == "browser":
            for way, is_nested in BROWSER_WAYS.items():
                for result in from_browser(server, nested if is_nested else order):
                    found[result["probe"]][way] = result
            return found
        for way, run in zip(WAYS, (from_interpreter, from_command, from_background)):
            for result in run(server, order, None):
                found[result["probe"]][way] = result
            for network in sorted({network for probe in inner.values() for network in networks(probe)} - {""}):
                outward = f"/volumes/suite/{user}-{network}.json"
                for result in run(server, outward, server.networked(facts, network)):
                    found[result["probe"]][f"{way}, {network}"] = result
        host.empty_project()
        for result in through_tools(host, user, server, tools, facts):
            found[result["probe"]]["tools"] = result
    finally:
        server.close()
    for result in through_weakened(host, user, weakened, facts):
        found[result["probe"]]["tools"] = result
    return found


def judge(probes, canary, attacked, weaknesses):
    """What is wrong, as lines."""
    wrong = []
    for name, probe in probes.items():
        if not canary[name]["escaped"] and not canary[name]["lacks"]:
            wrong.append(f"{name}: the canary did not succeed outside ({canary[name]['answer']}), so the probe proves nothing")
        for user, found in attacked.items():
            known = user in weaknesses.get(name, {}).get("servers", ())
            for way in ways(user, probe):
                result = found[name].get(way)
                if result is None:
                    wrong.append(f"{name}: no result from the {way} of {user}'s sandbox")
                elif result["escaped"] and not known:
                    wrong.append(f"{name}: ESCAPED from the {way} of {user}'s sandbox: {result['escaped']}")
                elif (result["answer"] or "").startswith("BROKEN"):
                    wrong.append(f"{name}: from the {way} of {user}'s sandbox: {result['answer']}")
            varies = weaknesses.get(name, {}).get("varies")
            if known and not varies and not any(result["escaped"] for result in found[name].values()):
                wrong.append(f"{name}: blocked in {user}'s sandbox, so weaknesses.toml need not name it any more")
    return wrong


def stale(probes):
    """What docs/security.md does not say as the probes do."""
    listed = re.findall(r"^\| \[.*\]\(\.\./escape/probes/(\w+)\.py\) \|", PAGE.read_text(), re.MULTILINE)
    new, gone = sorted(set(probes) - set(listed)), sorted(set(listed) - set(probes))
    wrong = [f"does not list {', '.join(new)}"] if new else []
    wrong += [f"lists {', '.join(gone)}, which are no more"] if gone else []
    return [f"docs/security.md {what}: run `make escape ESCAPE=--docs`" for what in wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="write docs/security.md")
    parser.add_argument("--only", default="", metavar="TEXT", help="probes whose name contains this")
    parser.add_argument("--servers", default=EVERY_SERVER, metavar="LIST")
    arguments = parser.parse_args()
    whole = not arguments.only and arguments.servers == EVERY_SERVER
    if arguments.docs and not whole:
        parser.error("docs/security.md shows the whole suite: --docs goes with neither --only nor --servers")
    if platform.machine() != "x86_64" or os.geteuid() != 0:
        print("the escape suite needs root, for its canaries, and x86-64, whose system calls it knows", file=sys.stderr)
        return 77
    if not BELLJAR.is_file():
        print(f"there is no server at {BELLJAR}: run `make build` first", file=sys.stderr)
        return 1
    if subprocess.run([sys.executable, HERE / "test_suite.py"]).returncode:
        return 1
    probes = load_probes(arguments.only)
    weaknesses = tomllib.loads((HERE / "weaknesses.toml").read_text())
    attacked = {}
    with Host() as host:
        began = time.monotonic()
        canary = canaries(host, probes)
        for name, probe in probes.items():
            canary[name]["lacks"] = needs.lacks(probe)
        print(f"outside: {sum(bool(c['escaped']) for c in canary.values())} of {len(probes)} succeed, "
              f"{time.monotonic() - began:.0f} s", flush=True)
        for user in arguments.servers.split(","):
            began = time.monotonic()
            try:
                attacked[user] = attack(host, user, probes)
            except NotHere as why:
                print(why)
                continue
            except NoEngine:
                continue
            tried = [found.values() for found in attacked[user].values() if found]
            out = sum(any(result["escaped"] for result in results) for results in tried)
            print(f"{user}: {len(tried) - out} of {len(tried)} blocked, {time.monotonic() - began:.0f} s", flush=True)
    wrong = judge(probes, canary, attacked, weaknesses)
    print(table.for_terminal(probes, canary, attacked, weaknesses))
    if whole and not arguments.docs:
        wrong += stale(probes)
    if arguments.docs and (missing := set(EVERY_SERVER.split(",")) - set(attacked)):
        wrong.append(f"there are no results of {', '.join(missing)}, which docs/security.md shows")
    if arguments.docs and not wrong:
        PAGE.write_text(table.page(probes, canary, attacked, weaknesses))
    elif arguments.docs:
        print("docs/security.md was not written, because of these:")
    for line in wrong:
        print(line)
    print(f"{len(probes)} probes, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
