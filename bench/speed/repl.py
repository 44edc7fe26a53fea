"""The least that a stateful interpreter can do: a line of JSON in, a line out. A floor, and what is put into other sandboxes.

    python3 repl.py            on standard input and output
    python3 repl.py SOCKET     on a socket of that name, for one client
"""

import ast
import io
import json
import socket
import sys
import traceback


def run(code, names):
    out, error, result = io.StringIO(), "", None
    kept, sys.stdout = sys.stdout, out
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            result = None if value is None else repr(value)
    except BaseException:
        error = traceback.format_exc()
    finally:
        sys.stdout = kept
    return {"success": not error, "stdout": out.getvalue(), "stderr": error, "result": result}


def main():
    names = {}
    if len(sys.argv) > 1:
        server = socket.socket(socket.AF_UNIX)
        server.bind(sys.argv[1])
        server.listen(1)
        stream = server.accept()[0].makefile("rwb")
        lines, out = stream, stream
    else:
        lines, out = sys.stdin.buffer, sys.stdout.buffer
    for line in iter(lines.readline, b""):
        asked = json.loads(line)
        answer = {"id": asked["id"], **run(asked["code"], names)}
        out.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
