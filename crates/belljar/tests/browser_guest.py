"""Stands in for the guest in tests of the browser: does what it is told, one JSON object a line, one a line back."""

import array, http.server, json, os, select, socket, sys, threading

control, browsers, packets = socket.socket(fileno=3), {}, []
EMPTY, DENIED = b"", {"denied": True}


def receive():
    data, ancillary, _, _ = control.recvmsg(1 << 16, socket.CMSG_SPACE(64))
    if not data:
        os._exit(0)
    fds = array.array("i")
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    return json.loads(data), list(fds)


class Browser:
    def __init__(self, fd):
        self.socket, self.buffer, self.next, self.events = socket.socket(fileno=fd), EMPTY, 0, []

    def message(self):
        while b"\0" not in self.buffer:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the browser is gone")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, params, session):
        self.next += 1
        call = {"id": self.next, "method": method, "params": params}
        if session:
            call["sessionId"] = session
        self.socket.sendall(json.dumps(call).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.next:
                return message
            self.events.append(message)

    def lives(self):
        try:
            return "result" in self.call("Browser.getVersion", {}, None)
        except (EOFError, OSError):
            return False

    def event(self, method):
        while True:
            for at, event in enumerate(self.events):
                if event.get("method") == method:
                    return self.events.pop(at)
            self.events.append(self.message())


def start(id):
    """Now and then Chromium ends while it starts; then it is started once more, as the guest does."""
    packet = launch(id)
    if packet["t"] == "browser" and not browsers[id].lives():
        packet = launch(id)
        while "already" in packet.get("message", ""):  # its place is not free yet
            packet = launch(id)
    return packet


def launch(id):
    control.send(json.dumps({"t": "browser", "id": id}).encode())
    packet, fds = receive()
    if packet["t"] == "browser":
        browsers[id] = Browser(fds[0])
    return packet


def serve(port):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>served inside</title>")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {}


def peek(pid):
    try:
        open(f"/proc/{pid}/mem", "rb").close()
        return {}
    except PermissionError:
        return DENIED


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
    return {}


def answer(do, **given):
    if do == "cdp":
        return browsers[given["id"]].call(given["method"], given["params"], given.get("session"))
    if do == "event":
        return browsers[given["id"]].event(given["method"])
    return {"start": start, "serve": serve, "peek": peek, "write": write}[do](**given)


def main():
    packet, _ = receive()
    config = packet["config"]
    packet, fds = receive()
    stream = socket.socket(fileno=fds[0]).makefile("rwb")
    stream.write(json.dumps({"browser": config["browser"]}).encode() + b"\n")
    stream.flush()
    for line in stream:
        try:
            said = answer(**json.loads(line))
        except Exception as error:
            said = {"error": {"message": repr(error)}}
        stream.write(json.dumps(said).encode() + b"\n")
        stream.flush()


main()
