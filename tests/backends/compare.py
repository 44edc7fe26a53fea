"""The same calls on two backends must have the same results, to the byte. Only ids and times are made alike first.

    compare.py SOCKET        the Docker engine's, as in unix:///path"""

import collections
import difflib
import json
import re
import sys

from harness import Raw, wait_until

LIMIT = 180
# Calls of tools in order; `{0}` stands for the id that the first call made.
SCENARIOS = {
    "contexts": [
        ("create_context", {"name": "a", "description": "first"}),
        ("run_code", {"context_id": "{0}", "code": "x = 20 + 1\nprint('hello')\nx * 2"}),
        ("run_code", {"context_id": "{0}", "code": "import pandas as pd\npd.DataFrame({'a': [1, 2]})"}),
        ("run_code", {"context_id": "{0}", "code": "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]); None"}),
        ("run_code", {"context_id": "{0}", "code": "def f(n): return 1 / n\nf(0)"}),
        ("run_code", {"context_id": "{0}", "code": "import sys\nprint('err', file=sys.stderr)\nawait __import__('asyncio').sleep(0)"}),
        ("run_code", {"context_id": "{0}", "code": "!id -un; pwd; echo $HOME; ls / | grep -vx sys; umask; ulimit -n"}),
        ("run_code", {"context_id": "{0}", "code": "%pwd"}),
        ("run_code", {"context_id": "{0}", "code": "print('x' * 300_000)"}),
        ("run_code", {"context_id": "{0}", "code": "import time\nwhile True: time.sleep(0.01)", "timeout": 1}),
        ("run_code", {"context_id": "{0}", "code": "import os; os.kill(os.getpid(), 9)"}),
        ("run_code", {"context_id": "{0}", "code": "x"}),
        ("run_code", {"context_id": "{0}", "code": "y = bytearray(4 << 30)\ny[::4096] = b'x' * len(y[::4096])", "timeout": 120}),
        ("run_code", {"context_id": "{0}", "code": "raise SystemExit(3)"}),
        ("run_code", {"context_id": "{0}", "code": "import socket; socket.create_connection(('192.0.2.1', 80), 5)"}),
        ("run_code", {"context_id": "{0}", "code": "import sys, os; print(sys.version, os.getpid() > 1, sorted(os.environ))"}),
        ("list_contexts", {}),
        ("stop_context", {"context_id": "{0}"}),
        ("run_code", {"context_id": "{0}", "code": "1"}),
    ],
    "javascript": [
        ("create_context", {"name": "b", "language": "javascript"}),
        ("run_code", {"context_id": "{0}", "code": "const x = await Promise.resolve(6); console.log('hi'); x * 7"}),
        ("run_code", {"context_id": "{0}", "code": "throw new TypeError('no')"}),
        ("run_code", {"context_id": "{0}", "code": "require('os').userInfo().username + process.cwd()"}),
        ("run_code", {"context_id": "{0}", "code": "for (;;) {}", "timeout": 1}),
        ("run_code", {"context_id": "{0}", "code": "process.kill(process.pid, 'SIGKILL')"}),
        ("run_code", {"context_id": "{0}", "code": "typeof x"}),
    ],
    "files": [
        ("create_context", {"name": "c"}),
        ("upload_file", {"context_id": "{0}", "path": "a/b.txt", "content": "hello"}),
        ("download_file", {"context_id": "{0}", "path": "a/b.txt"}),
        ("list_files", {"context_id": "{0}", "recursive": True}),
        ("list_files", {"context_id": "{0}", "path": "/"}),
        ("download_file", {"context_id": "{0}", "path": "nothing"}),
        ("download_file", {"context_id": "{0}", "path": "/etc/passwd"}),
        ("upload_file", {"context_id": "{0}", "path": "../../etc/x", "content": "x"}),
        ("upload_file", {"context_id": "{0}", "path": "x", "content": "?", "encoding": "base64"}),
        ("run_code", {"context_id": "{0}", "code": "import os; os.symlink('/etc', 'out'); os.mkfifo('pipe'); os.listdir('.')"}),
        ("download_file", {"context_id": "{0}", "path": "out/passwd"}),
        ("download_file", {"context_id": "{0}", "path": "pipe"}),
        ("list_files", {"context_id": "{0}"}),
    ],
    "sessions": [
        ("execute_code", {"code": "y = 5\nprint(y)"}),
        ("execute_code", {"session_id": "{0}", "code": "y + 1"}),
        ("execute_code", {"session_id": "{0}", "code": "1/0"}),
        ("execute_command", {"session_id": "{0}", "command": "echo out; echo err >&2; exit 3"}),
        ("execute_command", {"session_id": "{0}", "command": "cat", "args": ["/proc/1/environ"]}),
        ("execute_command", {"session_id": "{0}", "command": "no-such-program", "args": []}),
        ("execute_command", {"session_id": "{0}", "command": "sleep 60", "timeout": 1}),
        ("execute_command", {"session_id": "{0}", "command": "pwd; id; hostname; cat /etc/passwd; python3 --version; node --version"}),
        ("execute_command", {"session_id": "{0}", "command": "kill -9 $$"}),
        ("execute_command", {"session_id": "{0}", "command": "env | sort", "env": {"A": "b"}, "cwd": "/tmp"}),
        ("execute_command", {"session_id": "{0}", "command": "ls", "cwd": "/nowhere"}),
        ("execute_command", {"session_id": "{0}", "command": "grep -E 'NoNewPrivs|CapEff|Seccomp:' /proc/self/status"}),
        ("execute_command", {"session_id": "{0}", "command": "mount -t tmpfs x /tmp; unshare -r true; chmod 4755 /tmp; sync; echo $?"}),
        ("get_sessions", {}),
        ("get_volume_path", {}),
        ("execute_code", {"session_id": "{0}", "code": "1", "template": "node"}),
        ("execute_code", {"code": "1", "template": "nothing"}),
        ("stop_session", {"session_id": "{0}"}),
        ("execute_code", {"session_id": "{0}", "code": "1"}),
    ],
    "sandbox": [
        ("code_run", {"language": "python", "code": "1"}),
        ("sandbox_create", {"flavor": "small", "template": "node"}),
        ("code_run", {"language": "javascript", "code": "console.log(1)"}),
        ("code_run", {"language": "python", "code": "1/0"}),
        ("file_write", {"path": "a.txt", "content": "text"}),
        ("file_read", {"path": "a.txt"}),
        ("file_read", {"path": "b.txt"}),
        ("file_list", {}),
        ("sandbox_create", {"template": "nothing"}),
        ("sandbox_destroy", {}),
        ("file_list", {}),
    ],
}
ALIKE = [
    (r"ctx-[0-9a-f-]{36}", "ctx-ID"),
    (r"(session|sandbox)-[0-9a-f]{8}", r"\1-ID"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r'("execution_time(?:_ms)?"|\\"execution_time(?:_ms)?\\"): ?[\d.e-]+', r"\1: TIME"),
    (r"(ok: \w+, )[\d.]+ m?s", r"\1TIME"),
    (r"0x[0-9a-f]{8,}", "0xADDRESS"),
]


def alike(text):
    for pattern, instead in ALIKE:
        text = re.sub(pattern, instead, text)
    return text


def play(**settings):
    told, told_last = {}, collections.deque(maxlen=1)
    for name, calls in SCENARIOS.items():
        with Raw(toolsets="contexts,sessions,sandbox", POOL_SIZE=1, **settings) as server:
            def ready():
                looked = server.finish(server.start_call("execute_command", command="true")[1], LIMIT)
                told_last.append(looked)
                return "SERVER_NOT_READY" not in json.dumps(looked) and looked["structuredContent"]["session_id"]

            # A server that is still starting says so, and on a busy machine it takes its time.
            session = wait_until(ready, 300)
            if not session:
                sys.exit(f"{settings} is not ready after 300 s: {told_last[-1]}\n{server.stderr()}")
            server.call("stop_session", session_id=session)
            first, results = None, []
            for tool, arguments in calls:
                arguments = {key: value.replace("{0}", first or "") if isinstance(value, str) else value
                             for key, value in arguments.items()}
                result = server.finish(server.start_call(tool, **arguments)[1], LIMIT)
                content = result.get("structuredContent") or {}
                first = first or content.get("context_id") or content.get("session_id")
                results.append(f"{tool} {json.dumps(arguments)}\n{json.dumps(result)}")
            told[name] = results
    return told


def main():
    local, docker = play(BACKEND="local"), play(BACKEND="docker", DOCKER_HOST=sys.argv[1])
    calls = differing = 0
    for name in SCENARIOS:
        for ours, theirs in zip(local[name], docker[name], strict=True):
            calls += 1
            ours, theirs = alike(ours), alike(theirs)
            if ours != theirs:
                differing += 1
                print(f"== {name}: {ours.splitlines()[0]}")
                words = [re.split(r"(\\n|, )", text.split("\n", 1)[1]) for text in (ours, theirs)]
                print("\n".join(line for line in difflib.unified_diff(*words, "local", "docker", lineterm="", n=1)))
    print(f"{calls} calls on both backends, {differing} with different results")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
