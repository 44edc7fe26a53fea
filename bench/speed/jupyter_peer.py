"""Jupyter kernels, driven from inside the virtual environment that has them. Orders and answers are lines of JSON.

    python jupyter_peer.py kernel NAME          a kernel of that name, over ZeroMQ by jupyter_client
    python jupyter_peer.py gateway PORT         a kernel behind a Jupyter Kernel Gateway at that port, over HTTP and WebSocket
"""

import json
import queue
import re
import socket
import sys
import time
import urllib.request
import uuid

LIMIT = 120
LATE = 2  # seconds after a kernel said that it is idle


class Kernel:
    """By jupyter_client, as notebooks and most agents have it."""

    def __init__(self, name):
        self.name = name

    def start(self):
        from jupyter_client import KernelManager
        self.manager = KernelManager(kernel_name=self.name)
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.pid = self.manager.provisioner.pid

    def execute(self, code):
        """What it published; returns when the kernel is idle again and has replied."""
        number = self.client.execute(code)
        published = []
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT)
            if message["parent_header"].get("msg_id") != number:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            published.append(message)
        while self.client.get_shell_msg(timeout=LIMIT)["parent_header"].get("msg_id") != number:
            pass
        return published

    def late(self):
        """What it publishes although it has said that it is idle, as Deno's may."""
        return [self.client.get_iopub_msg(timeout=LATE)]

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Gateway:
    def __init__(self, port):
        self.base = f"127.0.0.1:{port}"

    def http(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.base}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return json.loads(answer.read() or b"null")

    def start(self):
        import websocket
        nodelay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.kernel = self.http("POST", "/api/kernels", {"name": "python3"})["id"]
        self.socket = websocket.create_connection(f"ws://{self.base}/api/kernels/{self.kernel}/channels", timeout=LIMIT, sockopt=[nodelay])
        self.pid = None
        self.execute("0")

    def execute(self, code):
        number = uuid.uuid4().hex
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        header = {"msg_id": number, "username": "", "session": self.kernel, "msg_type": "execute_request", "version": "5.3"}
        self.socket.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
        published, replied, idle = [], False, False
        while not (replied and idle):
            message = json.loads(self.socket.recv())
            if message["parent_header"].get("msg_id") != number:
                continue
            if message["msg_type"] == "execute_reply":
                replied = True
            elif message["msg_type"] == "status":
                idle = message["content"]["execution_state"] == "idle"
            else:
                published.append(message)
        return published

    def late(self):
        raise queue.Empty

    def stop(self):
        self.socket.close()
        self.http("DELETE", f"/api/kernels/{self.kernel}")


def text(published):
    """What a person would see, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", "".join(map(text_of, published)))


def text_of(message):
    content = message["content"]
    if "ename" in content:
        return content["ename"]
    if "data" in content:
        return f"{' '.join(content['data'])}: {content['data'].get('text/plain', '')}"
    return content.get("text", "")


def answered(kernel, code, expected):
    """(seconds until the answer was there, of these its client's on the processor, how long what it says is)"""
    start, own = time.perf_counter(), time.process_time()
    published = kernel.execute(code)
    took, client = time.perf_counter() - start, time.process_time() - own
    while expected not in (said := text(published)):
        try:
            published += kernel.late()
        except queue.Empty:
            raise ValueError(f"this answer does not contain {expected!r}: {said[-600:]!r}") from None
        took, client = time.perf_counter() - start, time.process_time() - own
    return took, client, len(said)


def obey(kernel, order, answer):
    if order["do"] == "start":
        kernel.start()
        for code, expected in order["first"]:
            answered(kernel, code, expected)
        answer["pid"] = kernel.pid
    elif order["do"] == "run":
        answers = [answered(kernel, order["code"], order["expect"]) for _ in range(order["count"])]
        answer["times"], answer["client"], (answer["length"], *_) = zip(*answers)
    elif order["do"] == "stop":
        kernel.stop()


def main():
    kind, where = sys.argv[1:]
    kernel = Kernel(where) if kind == "kernel" else Gateway(where)
    last = None
    try:
        for line in sys.stdin:
            order, answer = json.loads(line), {}
            last, began = order["do"], time.perf_counter()
            obey(kernel, order, answer)
            answer["seconds"] = time.perf_counter() - began
            print(json.dumps(answer), flush=True)
    except queue.Empty:
        print(json.dumps({"error": f"the kernel did not answer within {LIMIT} s"}), flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    finally:
        if last not in (None, "stop"):
            kernel.stop()  # not every kernel ends with whoever started it


if __name__ == "__main__":
    main()
