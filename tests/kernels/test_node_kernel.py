"""Tests of the JavaScript kernel, over a socketpair on fd 3 and real pipes on fds 1 and 2.

    python3 -m unittest tests/kernels/test_node_kernel.py      (BELLJAR_NODE=/path/to/node picks another Node)
"""
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
KERNEL = os.path.join(HERE, "../../crates/belljar-guest/kernels/node/kernel.cjs")
NODE = os.environ.get("BELLJAR_NODE") or shutil.which("node")
NODE = NODE and os.path.realpath(NODE)


class Run:
    def __init__(self, done, displays, out, err, seconds):
        self.done, self.displays, self.out, self.err, self.seconds = done, displays, out, err, seconds

    ok = property(lambda self: self.done["ok"])
    name = property(lambda self: self.done.get("error", {}).get("name"))

    @property
    def value(self):
        """text/plain of the cell's value, None when nothing was shown."""
        for result, parts in self.displays:
            if result:
                return dict(parts).get("text/plain", b"").decode()
        return None

    def __repr__(self):
        return f"{self.done} {self.displays} out={self.out[-500:]!r} err={self.err[-2000:]!r}"


class Kernel:
    def __init__(self, cwd, nonblocking=False, flags=("--expose-internals",)):
        self.sock, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        if nonblocking:
            for fd in (out[1], err[1]):
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 50)

        def place():
            os.dup2(high, 3)

        # close_fds=False because fd 3 must survive; everything else here is CLOEXEC.
        fcntl.fcntl(high, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        self.proc = subprocess.Popen(
            [NODE, *flags, KERNEL], cwd=cwd, stdin=subprocess.DEVNULL, stdout=out[1], stderr=err[1],
            close_fds=False, preexec_fn=place,
        )
        for fd in (out[1], err[1], high):
            os.close(fd)
        theirs.close()
        self.pid = self.proc.pid
        self.pipes = {out[0]: [], err[0]: []}
        self.out_fd, self.err_fd = out[0], err[0]
        for fd in self.pipes:
            os.set_blocking(fd, False)
        self.sock.setblocking(False)
        self.inbox, self.frames, self.next_id = bytearray(), [], 0
        self.hello = self.frame(10)[0]

    def close(self):
        self.sock.close()
        try:
            self.proc.wait(5)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        for fd in self.pipes:
            os.close(fd)

    def pump(self, timeout):
        ready, _, _ = select.select([self.sock, *self.pipes], [], [], timeout)
        for r in ready:
            if r is self.sock:
                data = r.recv(1 << 20)
                if not data:
                    raise EOFError(f"kernel closed the wire: {self.text(self.err_fd)}")
                self.inbox += data
            else:
                self.drain(r)
        while len(self.inbox) >= 4:
            n = struct.unpack_from("<I", self.inbox)[0]
            assert n <= 16 << 20, "frame above the limit"
            if len(self.inbox) < 4 + n:
                break
            j = struct.unpack_from("<I", self.inbox, 4)[0]
            [(kind, head)] = json.loads(bytes(self.inbox[8:8 + j])).items()
            self.frames.append(({"t": kind, **head}, bytes(self.inbox[8 + j:4 + n])))
            del self.inbox[:4 + n]

    def drain(self, fd):
        try:
            while data := os.read(fd, 1 << 20):
                self.pipes[fd].append(data)
        except BlockingIOError:
            pass

    def text(self, fd):
        self.drain(fd)
        data, self.pipes[fd] = b"".join(self.pipes[fd]), []
        return data.decode()

    def frame(self, timeout):
        end = time.monotonic() + timeout
        while not self.frames:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no frame; stderr: {self.text(self.err_fd)}")
            self.pump(left)
        return self.frames.pop(0)

    def send(self, head, body=b""):
        data = json.dumps(head).encode()
        self.sock.setblocking(True)
        self.sock.sendall(struct.pack("<II", 4 + len(data) + len(body), len(data)) + data + body)
        self.sock.setblocking(False)

    def start(self, code, **more):
        self.next_id += 1
        self.began = time.monotonic()
        self.send({"t": "run", "id": self.next_id, **more}, code.encode())
        return self.next_id

    def interrupt(self, frame=True, sig=True):
        if frame:
            self.send({"t": "interrupt", "id": self.next_id})
        if sig:
            os.kill(self.pid, signal.SIGINT)

    def finish(self, timeout=10):
        displays = []
        while True:
            head, body = self.frame(timeout)
            assert head["id"] == self.next_id, head
            if head["t"] == "done":
                seconds = time.monotonic() - self.began
                return Run(head, displays, self.text(self.out_fd), self.text(self.err_fd), seconds)
            parts, at = [], 0
            for mime, n in head["parts"]:
                parts.append((mime, body[at:at + n]))
                at += n
            assert at == len(body)
            displays.append((head["result"], parts))

    def run(self, code, timeout=10, **more):
        self.start(code, **more)
        return self.finish(timeout)


@unittest.skipUnless(NODE, "no node")
class Base(unittest.TestCase):
    def setUp(self):
        self.dir = os.path.realpath(tempfile.mkdtemp(prefix="belljar-node-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.k = self.kernel()

    def kernel(self, **options):
        k = Kernel(self.dir, **options)
        self.addCleanup(k.close)
        return k

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)

    def good(self, code):
        r = self.k.run(code)
        self.assertTrue(r.ok, r)
        self.assertEqual(r.err, "", r)
        return r

    def shows(self, code, value):
        self.assertEqual(self.good(code).value, value, code)

    def fails(self, code, name, *texts):
        r = self.k.run(code)
        self.assertFalse(r.ok, r)
        self.assertEqual(r.name, name, r)
        self.assertIs(r.done["interrupted"], False)
        for text in texts:
            self.assertIn(text, r.err)
        self.assertNotIn("kernel.cjs", r.err)
        self.assertNotIn("node:in", r.err)
        return r


class Cells(Base):
    def test_hello(self):
        self.assertEqual(self.k.hello["t"], "hello")
        self.assertEqual(self.k.hello["pid"], self.k.pid)
        self.assertEqual(self.k.hello["language"], "javascript")
        self.assertRegex(self.k.hello["version"], r"^\d+\.\d+\.\d+")

    def test_fatal(self):
        k = self.kernel(flags=())                       # nothing works without the internals
        self.assertEqual(k.hello["t"], "fatal")
        self.assertIn("internal/test/binding", k.hello["message"])
        self.assertEqual(k.proc.wait(5), 70)

    def test_values(self):
        for code, value in [
            ("1+1", "2"), ("'a\\n\"b\"'", "'a\\n\"b\"'"), ("undefined", None), ("null", "null"), ("-0", "-0"),
            ("NaN", "NaN"), ("12345678901234567890n", "12345678901234567890n"), ("-5n", "-5n"), ("Symbol('s')", "Symbol(s)"),
            ("Infinity", "Infinity"), ("true", "true"), ("{a:1}", "{ a: 1 }"), ("{}", "{}"), ("({a:1}).a", "1"),
            ("{ a: 1, b: [1,2] } // c", "{ a: 1, b: [ 1, 2 ] }"), ("{ let z = 4; z }", "4"), ("[1,,3]", "[ 1, <1 empty item>, 3 ]"),
            ("new Map([[1,{a:2}]])", "Map(1) { 1 => { a: 2 } }"), ("new Set('ab')", "Set(2) { 'a', 'b' }"),
            ("class P { constructor() { this.x = 1 } }; new P", "P { x: 1 }"), ("(function foo() {})", "[Function: foo]"),
            ("const c = {}; c.c = c; c", "<ref *1> { c: [Circular *1] }"), ("({ get x() { throw 1 } })", "{ x: [Getter] }"),
            ("new Proxy({ a: 1 }, {})", "Proxy [ { a: 1 }, {} ]"), ("({a:{b:{c:{}}}})", "{ a: { b: { c: {} } } }"),
            ("({a:{b:{c:{d:1}}}})", "{ a: { b: { c: [Object] } } }"), ("'ünï😀'", "'ünï😀'"), ("5; let after = 1", None),
            ("for (let i = 0; i < 3; i++) i", None), ("if (true) 7", "7"), ("", None), ("// only a comment", None),
            ("#!/usr/bin/env node\n8", "8"), ("<!-- html-like\n9", "9"), ("'use strict'; 10", "10"), ("/* a */ 11 // b", "11"),
            ("lab: { break lab }", None), ("Object.create(null)", "[Object: null prototype] {}"), ("1;;", "1"),
            ("(function*(){ yield 1 })().next()", "{ value: 1, done: false }"), ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ]:
            with self.subTest(code):
                self.shows(code, value)

    def test_state_and_redeclaration(self):
        self.good("let a = 1; const b = 2; class C { v() { return 1 } } function d() { return a + b } var e = 5")
        self.shows("[a, b, new C().v(), d(), e]", "[ 1, 2, 1, 3, 5 ]")
        self.good("const a = 10; let b = 20")
        self.shows("d()", "30")                         # closures of earlier cells see the new bindings
        kinds = ["let {0} = {1}", "const {0} = {1}", "var {0} = {1}", "class {0} {{ static v = {1} }}", "function {0}() {{ return {1} }}"]
        for i, first in enumerate(kinds):
            for j, second in enumerate(kinds):
                with self.subTest(first=first, second=second):
                    self.good(first.format(f"n{i}{j}", 1))
                    r = self.good(second.format(f"n{i}{j}", 2) + f"; [n{i}{j}?.v, n{i}{j}] + ''")
                    self.assertIn("2", r.value)
        self.good("const {x, y: [z = 3, ...rest], ...others} = {x: 1, y: [undefined, 4, 5], q: 6}")
        self.shows("[x, z, rest, others]", "[ 1, 3, [ 4, 5 ], { q: 6 } ]")
        self.good("implicit = 1; globalThis.g2 = 2")
        self.good("let implicit = 3; const g2 = 4")
        self.shows("[implicit, g2]", "[ 3, 4 ]")

    def test_var_and_function_semantics(self):
        self.shows("for (var i = 0, n = 3; i < n; i++) {}\nfor (var q of [1, 2]) ;\nfor (var k in {kk: 1}) ;\n"
                   "if (true) { var {r, s: [t = 9]} = {r: 1, s: []} }\n[i, n, q, k, r, t]", "[ 3, 3, 2, 'kk', 1, 9 ]")
        self.shows("var count = count || 41; var count; count + 1", "42")
        self.shows("var count = count + 1; count", "42")
        self.shows("hoisted(); function hoisted() { return 'up' }", "'up'")
        self.shows("function hoisted() { return 1 } function hoisted() { return 2 } hoisted.name + hoisted()", "'hoisted2'")
        self.shows("async function af() { return 5 } function* gf() { yield 6 } [await af(), ...gf()]", "[ 5, 6 ]")
        self.shows("var fs = require('fs'), p = function() {}; [typeof fs.readFileSync, p.name]", "[ 'function', 'p' ]")
        self.shows("function outer() { var i = 1; function inner() { return i } return inner() } outer()", "1")

    def test_await(self):
        self.shows("await 5", "5")
        self.shows("const v = await new Promise(r => setTimeout(r, 20, 'late')); v", "'late'")
        self.shows("v", "'late'")
        self.shows("Promise.resolve({a: 1})", "{ a: 1 }")           # a last promise is awaited
        self.shows("async function main() { await null; return 'm' }\nmain()", "'m'")
        self.fails("Promise.reject(new TypeError('no'))", "TypeError", "TypeError: no")
        r = self.good("async function* ag() { yield 1; yield 2 }\nfor await (const x of ag()) console.log(x)")
        self.assertEqual(r.out, "1\n2\n")
        self.fails("await null; throw new RangeError('later')", "RangeError", "RangeError: later\n    at cell-")

    def test_underscore(self):
        self.good("40 + 2")
        self.shows("_ + 1", "43")
        self.k.run("throw new Error('seen')")
        self.shows("_error.message", "'seen'")
        self.good("_ = 'mine'")
        self.good("7")
        self.shows("_", "'mine'")
        self.good("const _ = {lodash: 1}")
        self.shows("_", "{ lodash: 1 }")

    def test_modules(self):
        self.write("rel.mjs", "export const v = 'rel'; export default 'def'")
        self.write("rel.cjs", "module.exports = {c: 'cjs', f: __filename}")
        self.write("node_modules/pkg/package.json", '{"name":"pkg","exports":{"import":"./i.mjs","require":"./r.cjs"}}')
        self.write("node_modules/pkg/i.mjs", "export default 'esm'; export const named = 1")
        self.write("node_modules/pkg/r.cjs", "module.exports = 'required'")
        self.shows("(await import('./rel.mjs')).v", "'rel'")
        self.shows("[require('./rel.cjs').c, require('pkg'), (await import('pkg')).default]", "[ 'cjs', 'required', 'esm' ]")
        self.shows("import d, {v as w} from './rel.mjs'\nimport * as ns from 'pkg'\nimport {\n  join,\n  sep\n} from 'node:path'\n"
                   "import './rel.cjs'\n[d, w, ns.named, join('a', 'b'), sep]", "[ 'def', 'rel', 1, 'a/b', '/' ]")
        self.shows("import d from 'pkg'; d", "'esm'")
        self.good("const later = () => import('node:os')")
        self.shows("typeof (await later()).cpus", "'function'")
        self.shows("function viaImport() { return import('./rel.mjs') }\n(await viaImport()).default", "'def'")
        self.shows("export const ex = 1; export default function exf() { return ex }\nexf()", "1")
        self.fails("import nope from 'not-there'", "Error", "not-there")
        self.fails("await import('./missing.mjs')", "Error", "missing.mjs")
        self.write("bad.cjs", "let = = 1")
        self.fails("require('./bad.cjs')", "SyntaxError", "bad.cjs:1")
        self.shows("'import x from \"y\"'", "'import x from \"y\"'")

    def test_environment(self):
        self.shows("[__dirname === process.cwd(), require.main === module, process.argv.length, process.execArgv]",
                   "[ true, true, 2, [] ]")
        self.shows("import.meta.url === `file://${process.argv[1]}` && import.meta.dirname === __dirname", "true")
        self.shows("[typeof fs.readFileSync, path.join('a','b'), typeof os.cpus, typeof crypto.createHash, typeof child_process.exec]",
                   "[ 'function', 'a/b', 'function', 'function', 'function' ]")
        self.shows("process.stdin.on('data', () => {}); await new Promise(r => process.stdin.on('end', () => r('eof')))", "'eof'")
        self.shows("const rl = require('readline').createInterface({input: fs.createReadStream('/dev/null')}); "
                   "await new Promise(r => rl.on('close', () => r('closed')))", "'closed'")
        self.shows("typeof fetch + typeof structuredClone + this === 'functionfunction' + globalThis", "true")


    def test_trace(self):
        def seen(**more):
            return self.k.run("[process.env.TRACEPARENT,"
                              " require('child_process').execSync('echo $TRACEPARENT').toString()].join()", **more).value

        self.assertEqual(seen(), "',\\n'")
        self.assertEqual(seen(trace="00-a"), "'00-a,00-a\\n'")
        self.assertEqual(seen(trace="00-b"), "'00-b,00-b\\n'")
        self.assertEqual(seen(), "',\\n'")
        self.good("process.env.TRACEPARENT = 'mine'")
        self.assertEqual(seen(), "'mine,mine\\n'")
        self.assertEqual(seen(trace="00-c"), "'00-c,00-c\\n'")
        self.good("process.env = null")
        self.assertTrue(self.k.run("1", trace="00-d").ok)

    def test_environment_that_changes_between_runs(self):
        seen = "[process.env.A, require('child_process').execSync('echo $A').toString()].join()"
        self.assertEqual(self.k.run(seen, env={"A": "1", "B": None}).value, "'1,1\\n'")
        self.assertEqual(self.k.run(seen, env={"A": None}).value, "',\\n'")

    def test_fetch_takes_the_way_that_the_environment_names(self):
        with socket.create_server(("127.0.0.1", 0)) as proxy:
            proxy.settimeout(60)
            heard = []

            def serve():
                stream, _ = proxy.accept()
                with stream:
                    heard.append(stream.recv(65536))
                    stream.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                    heard.append(stream.recv(65536))
                    stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
            got = self.k.run("await (await fetch('http://a.example/x')).text()", env={"http_proxy": address, "no_proxy": "localhost"})
            self.assertEqual(got.value, "'hi'", got)
            thread.join(60)
            self.assertTrue(heard[0].startswith(b"CONNECT a.example:80 HTTP/1.1\r\n"), heard)
            self.assertTrue(heard[1].startswith(b"GET /x HTTP/1.1\r\n"), heard)


class Output(Base):
    def test_console(self):
        r = self.k.run("console.log('l', {a: 1}); console.info('i'); console.debug('d'); console.error('e'); console.warn('w');"
                       "console.group('g'); console.log('in'); console.groupEnd(); console.dir({d: 1}); console.table([{t: 1}]);"
                       "console.time('x'); console.timeEnd('x'); console.count(); console.assert(false, 'as'); console.trace('tr');"
                       "process.stdout.write('raw\\n'); console.log('%s is %d', 'five', 5)")
        self.assertTrue(r.ok)
        for text in ("l { a: 1 }\ni\nd\ng\n  in\n{ d: 1 }\n", "│ (index) │ t │", "x: ", "default: 1\n", "raw\nfive is 5\n"):
            self.assertIn(text, r.out)
        for text in ("e\nw\n", "Assertion failed: as", "Trace: tr\n    at cell-1.js"):
            self.assertIn(text, r.err)
        self.assertNotIn("kernel.cjs", r.err)

    def test_big(self):
        for nonblocking in (False, True):
            k = self.kernel(nonblocking=nonblocking)
            r = k.run("for (let i = 0; i < 100000; i++) console.log('x'.repeat(99))")
            self.assertEqual(len(r.out), 10_000_000)
            self.assertLess(r.seconds, 5)
            r = k.run("console.log('é'.repeat(5e6)); console.error('end')")
            self.assertEqual((len(r.out), r.err), (5_000_001, "end\n"))
            self.assertLess(r.seconds, 5)

    def test_stdout_stream(self):
        r = self.good("process.stdout.end('bye\\n'); await new Promise(r => process.stdout.write('cb\\n', r)); process.stdout.destroy()")
        self.assertEqual(r.out, "bye\ncb\n")
        self.assertEqual(self.good("console.log('still'); require('stream').Readable.from(['p\\n']).pipe(process.stdout)").out, "still\np\n")

    def test_children(self):
        r = self.good("require('child_process').execSync('echo child; ls -l /proc/self/fd', {stdio: 'inherit'}); 0")
        self.assertIn("child\n", r.out)
        self.assertNotIn("socket:", r.out)              # the wire is not inherited
        r = self.good("new Promise(r => child_process.spawn('sh', ['-c', 'ls -l /proc/self/fd'], {stdio: 'inherit'}).on('exit', r))")
        self.assertNotIn("socket:", r.out)
        self.assertEqual(r.value, "0")
        r = self.good("child_process.exec('echo from exec', (e, out) => console.log(out)); 0")
        self.assertEqual(r.out, "from exec\n\n")        # waited for
        self.write("show.cjs", "process.send(process.execArgv)")
        self.shows("await new Promise(r => child_process.fork('./show.cjs').on('message', r))", "[]")

    def test_closed_and_replaced_fds(self):
        self.assertEqual(self.good("fs.closeSync(1); console.log('one')").out, "one\n")
        self.assertEqual(self.good("console.log('two'); child_process.execSync('echo three', {stdio: 'inherit'}); 0").out, "two\nthree\n")
        self.k.run("fs.closeSync(2); fs.closeSync(0); fs.openSync('/dev/zero', 'w'); fs.openSync('/dev/null', 'w')")
        r = self.k.run("console.error('e1'); child_process.execSync('echo e2 >&2; cat', {stdio: 'inherit'}); 0")
        self.assertEqual((r.ok, r.err), (True, "e1\ne2\n"))

    def test_display(self):
        r = self.good("display({a: 1}); display.html('<b>'); display.json({j: [1]}); display.markdown('# m'); display.svg('<svg/>');"
                      "display({[Symbol.for('belljar.display')]: () => ({'text/plain': 'p', 'text/html': '<p>'})}); 1")
        self.assertEqual(r.displays, [
            (False, [("text/plain", b"{ a: 1 }")]), (False, [("text/html", b"<b>")]), (False, [("application/json", b'{"j":[1]}')]),
            (False, [("text/markdown", b"# m")]), (False, [("image/svg+xml", b"<svg/>")]),
            (False, [("text/plain", b"p"), ("text/html", b"<p>")]), (True, [("text/plain", b"1")]),
        ])
        r = self.good("const png = Buffer.from('89504e470d0a1a0a0000', 'hex'); display.image(png); png")
        self.assertEqual(r.displays[0], (False, [("image/png", bytes.fromhex("89504e470d0a1a0a0000"))]))
        self.assertEqual([m for m, _ in r.displays[1][1]], ["text/plain", "image/png"])
        r = self.good("class W { [Symbol.for('belljar.display')]() { return {'text/html': 'w'} } } new W()")
        self.assertEqual(r.displays, [(True, [("text/html", b"w")])])

    def test_display_limits(self):
        r = self.good("display.html('x'.repeat(9 << 20)); display.html('y'.repeat(8 << 20)); 0")
        self.assertEqual(r.displays[0][1][0][0], "text/plain")
        self.assertIn(b"text/html of 9.0 MiB", r.displays[0][1][0][1])
        self.assertEqual(len(r.displays[1][1][0][1]), 8 << 20)
        r = self.good("const part = 'z'.repeat(7 << 20); display({[Symbol.for('belljar.display')]: () => ({a: part, b: part, c: part})})")
        self.assertEqual([(m, len(b)) for m, b in r.displays[0][1]][:2], [("a", 7 << 20), ("b", 7 << 20)])
        self.assertEqual(r.displays[0][1][2][0], "text/plain")

    def test_drain(self):
        r = self.good("setTimeout(() => { console.log('x'); setTimeout(() => console.log('y'), 50) }, 100)")
        self.assertEqual((r.out, r.value), ("x\ny\n", None))
        self.assertLess(r.seconds, 0.6)
        self.assertEqual(self.good("setImmediate(() => console.log('im')); process.nextTick(() => console.log('nt')); 0").out, "nt\nim\n")
        self.assertEqual(self.good("fs.readFile('/dev/null', () => console.log('read')); 0").out, "read\n")
        for code in ("const iv = setInterval(() => {}, 10); 0", "setTimeout(() => {}, 60000); 0",
                     "const server = require('http').createServer((q, s) => s.end('ok')); server.listen(0, '127.0.0.1'); 0",
                     "await new Promise(r => server.listening ? r() : server.on('listening', r)); await (await fetch('http://127.0.0.1:' + server.address().port)).text()",
                     "function chain() { setTimeout(chain, 30).ref() }; 0", "1"):
            self.assertLess(self.good(code).seconds, 0.9, code)
        r = self.good("chain(); 0")                     # never ends: the cap
        self.assertTrue(0.9 < r.seconds < 1.5, r.seconds)
        self.assertLess(self.good("1").seconds, 0.5)    # and later cells do not pay for it
        self.good("clearInterval(iv); server.close()")


class Errors(Base):
    def test_plain(self):
        r = self.fails("function f() {\n  return null.x\n}\n\nf()", "TypeError")
        self.assertEqual(r.err, "TypeError: Cannot read properties of null (reading 'x')\n    at f (cell-1.js:2:15)\n    at cell-1.js:5:1\n")
        self.assertEqual(r.done["error"]["message"], "Cannot read properties of null (reading 'x')")
        r = self.good("try { f() } catch (e) { console.log(e.stack) }")
        self.assertNotIn("kernel.cjs", r.out)
        self.assertEqual(r.out.count("\n"), 3, r.out)
        self.fails("throw 'str'", "Uncaught", "Uncaught 'str'")
        self.fails("throw null", "Uncaught", "Uncaught null")
        self.fails("throw {a: 1}", "Uncaught", "Uncaught { a: 1 }")
        self.fails("throw new Proxy({}, {get() { throw 1 }, getPrototypeOf() { throw 2 }})", "Uncaught", "Uncaught")
        self.fails("const e = new Error('x'); Object.defineProperty(e, 'name', {get() { throw 1 }}); throw e", "Uncaught")
        self.fails("throw new Error('a', {cause: new TypeError('b')})", "Error", "Error: a", "[cause]: TypeError: b")
        self.fails("throw new AggregateError([new Error('one'), new Error('two')], 'many')", "AggregateError", "many", "one", "two")
        self.fails("fs.readFileSync('/nope')", "Error", "ENOENT", "code: 'ENOENT'")
        self.fails("class MyError extends Error { name = 'MyError'; extra = 5 }; throw new MyError('m')", "MyError", "extra: 5")
        r = self.fails("throw new Error('m'.repeat(5000))", "Error")
        self.assertEqual(len(r.done["error"]["message"]), 2000)
        self.fails("function deep() { deep() } deep()", "RangeError", "Maximum call stack")
        self.fails("'use strict'\nfunction st() { undeclared = 1 }\nst()", "ReferenceError", "undeclared is not defined")
        self.fails("({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('in inspect') } })", "Error", "in inspect")

    def test_syntax(self):
        r = self.fails("let ok = 1;\nlet y = +;", "SyntaxError")
        self.assertEqual(r.err, "cell-1.js:2\nlet y = +;\n         ^\n\nSyntaxError: Unexpected token ';'\n")
        self.fails("const t: number = 1", "SyntaxError", "const t: number = 1\n      ^")
        self.fails("JSON.parse('{bad')", "SyntaxError", "at JSON.parse", "cell-3.js:1:6")
        self.fails("function (", "SyntaxError", "cell-4.js:1")
        self.fails("return 5", "SyntaxError")
        self.shows("1", "1")

    def test_background_while_running(self):
        r = self.fails("Promise.reject(new Error('rej')); 5", "Error", "Error: rej\n    at cell-1.js")
        r = self.fails("setTimeout(() => { throw new RangeError('tm') }, 20)", "RangeError", "RangeError: tm")
        r = self.fails("setTimeout(() => { throw new RangeError('tm') }, 20); await new Promise(() => {})", "RangeError")
        self.assertLess(r.seconds, 1)
        self.fails("process.nextTick(() => { throw new Error('tick') }); 1", "Error", "Error: tick")
        self.fails("new (require('events'))().emit('error', new Error('unheard'))", "Error", "unheard")
        self.fails("fs.readFile('/dev/null', () => { throw new Error('io') }); await new Promise(() => {})", "Error", "Error: io")
        self.good("process.on('uncaughtException', e => console.log('mine', e.message))")
        self.assertEqual(self.good("setTimeout(() => { throw new Error('handled') }, 5)").out, "mine handled\n")
        self.good("process.removeAllListeners(); 0")
        self.fails("setTimeout(() => { throw new Error('again') }, 5)", "Error", "again")

    def test_background_while_idle(self):
        self.good("setTimeout(() => { Promise.reject(new Error('idle rejection')); throw new Error('idle throw') }, 1200); 0")
        time.sleep(1.5)
        r = self.k.run("'alive'")
        self.assertEqual((r.ok, r.value), (True, "'alive'"))
        self.assertIn("idle throw", r.err)
        self.assertIn("idle rejection", r.err)

    def test_display_while_idle(self):
        self.good("setTimeout(() => display.html('idle'), 1100); 0")
        time.sleep(1.3)
        self.assertEqual(self.good("1").displays, [(False, [("text/html", b"idle")]), (True, [("text/plain", b"1")])])

    def test_plain_cells_are_no_different(self):
        """A cell that declares nothing is run without the inspector; one that so much as mentions `let` is not. (What a tick throws
        comes after the value of the one, and before that of the other.)"""
        cells = [
            "1+1", "x = 5; x", "x", "this === globalThis", "x = y = 4; [x, y]", "{a: 1}.a", "", "// c", ";", "1;;", "#!/bin/x\n8", "<!-- h\n9",
            "throw new Error('e')", "throw 3", "throw null", "throw undefined", "nope", "\n\n  nope()", "null.x", "a = b = nope",
            "(() => { throw new TypeError('t') })()", "Error('not thrown')", "new Error().stack.split('\\n').length", "JSON.parse('{')",
            "throw Object.assign(new Error('coded'), {code: 'ERR_SCRIPT_EXECUTION_INTERRUPTED'})", "({ get a() { throw new Error('g') } }).a",
            "a b", "1 +", "return 1", "yield 1", "new.target", "super.x", "delete x", "enum x", "'\\u{110000}'", "with ({w: 1}) w", "debugger", "interface = 2",
            "'use strict'; undeclared = 1", "l\\u0065t", "eval('1+2')", "eval('nope +')", "(0,eval)('v'+'ar q1 = 1'); q1", "eval('v'+'ar q2 = 1'); q2",
            "for (i = 0; i < 3; i++) i", "while (false) 1", "do { 5 } while (false)", "if (true) 7", "switch (1) { case 1: 'one' }", "try { throw 1 } catch (e) { e }",
            "Promise.resolve(4)", "Promise.reject(new Error('r'))", "Promise.reject(new Error('r')); 5", "({then(r) { r(5) }})", "(async () => 1)()",
            "(async () => { throw new Error('as') })()", "new Promise(r => setTimeout(r, 20, 'later'))", "Promise.resolve().then(() => { throw new Error('chain') }); 6",
            "setTimeout(() => console.log('t'), 10); 1", "setTimeout(() => { throw new Error('late') }, 10); 1", "setInterval(() => 1, 1e6)",
            "process.nextTick(() => console.log('tick')); 2", "queueMicrotask(() => console.log('micro')); 3",
            "process.exit(3)", "process.exit()", "process.exitCode = 4; 1", "process.emit('uncaughtException', new Error('fake')); 1",
            "console.log('a'); console.error('b'); 'c'", "process.stdout.write('raw\\n')", "display('x'); 1", "display.html('<b>')", "_", "_error",
            "require('os').EOL", "module.exports", "__filename", "x => x", "`t${1}`", "/re/g", "Buffer.from('a')", "1n << 70n",
            "vm.Script = null; 1", "Object.prototype.filename = 'x'; 1", "nope",
        ]
        other = self.kernel()
        for code in cells:
            seen = [(r.done, r.displays, r.out, r.err) for r in (self.k.run(code), other.run(code + "\n// let"))]
            with self.subTest(code):
                self.assertEqual(*seen)

    def test_plain_cells_go_past_the_inspector(self):
        self.good("posts = []; proto = require('inspector').Session.prototype; post = proto.post;"
                  "proto.post = function(...args) { posts.push(args[0]); return Reflect.apply(post, this, args) }; 0")
        self.k.start("await new Promise(r => { globalThis.r = r })")   # a run that is left unfinished takes its session with it
        time.sleep(0.1)
        self.k.interrupt()
        self.assertEqual(self.k.finish(5).name, "Interrupted")
        self.good("posts.length = 0")
        self.shows("1+1", "2")
        self.fails("nope", "ReferenceError")
        self.shows("posts", "[]")
        self.good("let declared = 1")
        self.shows("posts[0]", "'Runtime.evaluate'")

    def test_exit(self):
        self.good("let kept = 1")
        r = self.k.run("console.log('before'); process.exit(); console.log('after')")
        self.assertEqual((r.ok, r.out, r.err), (True, "before\n", ""))
        for code in ("try { process.exit(3) } catch {} finally { console.log('no') }", "setTimeout(() => process.exit(3), 10); await new Promise(() => {})",
                     "await null; process.exit(3)", "process.exitCode = 3; process.exit()", "fs.readFile('/dev/null', () => process.exit(3)); 0",
                     "process.reallyExit(3)", "setImmediate(() => process.exit(3)); 0"):
            r = self.k.run(code)
            self.assertEqual((r.ok, r.name, r.out, r.err), (False, "Exit", "", ""), code)
            self.assertIs(r.done["interrupted"], False)
            self.assertIn("3", r.done["error"]["message"])
        self.shows("kept", "1")


GC = "require('v8').setFlagsFromString('--expose-gc'); require('vm').runInNewContext('gc')();"


class Interrupts(Base):
    STUCK = {
        "loop": "while (true) {}",
        "caught loop": "for (;;) { try { for (;;) {} } catch {} finally { for (;;) {} } }",
        "await": "await new Promise(r => { globalThis.r = r })",
        "microtask": "await null; for (;;) {}",
        "after timer await": "await new Promise(r => setTimeout(r, 10)); for (;;) {}",
        "microtask chain": "async function spin() { for (;;) await null } spin()",
        "timer": "setTimeout(() => { for (;;) {} }, 10)",
        "interval": "setInterval(() => { for (;;) {} }, 10); await new Promise(() => setTimeout(() => {}, 1e6))",
        "immediate": "setImmediate(() => { for (;;) {} })",
        "next tick": "process.nextTick(() => { for (;;) {} })",
        "io callback": "fs.readFile('/dev/null', () => { for (;;) {} }); await new Promise(r => { globalThis.r = r })",
        "after io await": "await fs.promises.readFile('/dev/null'); for (;;) {}",
        "promise callback": "Promise.resolve().then(() => { for (;;) {} })",
        "regex": "/(a+)+$/.test('a'.repeat(60) + 'b')",
        "getter": "({ [Symbol.for('nodejs.util.inspect.custom')]() { for (;;) {} } })",
        "output": "for (;;) console.log('x'.repeat(1000))",
        "display": "for (;;) display.html('x'.repeat(10000))",
        "function": "function hang() { for (;;) {} }\nhang()",
        "static import": "import fs from 'fs'\nfor (;;) {}",
        "Atomics.wait": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    }

    def check(self, **how):
        self.good("let kept = 'kept'; const obj = {n: 0}")
        for n, (name, code) in enumerate(self.STUCK.items()):
            with self.subTest(name):
                self.k.start(code)
                end = time.monotonic() + 0.12
                while time.monotonic() < end:
                    self.k.pump(0.02)
                self.k.interrupt(**how)
                sent = time.monotonic()
                r = self.k.finish(5)
                self.assertLess(time.monotonic() - sent, 1.0, name)
                self.assertEqual((r.ok, r.name, r.done.get("interrupted")), (False, "Interrupted", True), f"{name}: {r}")
                self.assertTrue(r.err.endswith("Interrupted\n"), r.err)
                r = self.k.run(f"obj.n++; kept + {n}")
                self.assertEqual((r.ok, r.value, r.err), (True, f"'kept{n}'", ""), f"after {name}: {r}")
        self.shows("obj.n", str(len(self.STUCK)))
        self.shows(GC + "1", "1")                       # V8 must not trip over what the stopped cells left
        r = self.good("await new Promise(r => setTimeout(r, 20)); setImmediate(() => console.log('immediate')); process.nextTick(() => console.log('tick')); 'end'")
        self.assertEqual((r.out, r.value), ("tick\nimmediate\n", "'end'"))

    def test_frame_and_signal(self):
        self.check()

    def test_signal_alone(self):
        self.check(frame=False)

    def test_frame_alone_while_waiting(self):
        self.k.start("await new Promise(r => { globalThis.r = r })")
        time.sleep(0.1)
        self.k.interrupt(sig=False)
        self.assertEqual(self.k.finish(2).name, "Interrupted")

    def test_collected_await(self):
        self.k.start("setTimeout(() => {" + GC + "}, 50); await new Promise(() => {})")
        time.sleep(0.3)
        self.k.interrupt()
        self.assertEqual(self.k.finish(2).name, "Interrupted")
        self.shows(GC + "2", "2")
        self.fails("setTimeout(() => { throw new Error('first') }, 10); await new Promise(() => {})", "Error", "first")
        self.shows(GC + "3", "3")

    def test_blocking_child(self):
        """A child that is waited for synchronously has to get its own SIGINT (the guest's part). This one does not end before the
        kernel has had time to notice its own."""
        self.good("const {spawnSync} = require('child_process')")
        self.k.start("spawnSync('sh', ['-c', 'trap \"sleep 0.5; exit\" INT; while :; do sleep 0.05; done']); 'not shown'")
        time.sleep(0.3)
        self.k.interrupt()
        with open(f"/proc/{self.k.pid}/task/{self.k.pid}/children") as f:
            for child in f.read().split():
                os.kill(int(child), signal.SIGINT)
        self.assertEqual(self.k.finish(3).name, "Interrupted")

    def test_late(self):
        """An interrupt that crosses the end of its run must not touch the next one."""
        self.good("performance.now(); 0")               # loaded lazily: not to be interrupted half way
        for i in range(200):
            self.k.start("for (let t = performance.now() + 0.3; performance.now() < t;); 1")
            time.sleep((i % 10) * 1e-4)
            self.k.interrupt()
            r = self.finish_as_the_guest_does()
            self.assertIn(r.name, (None, "Interrupted"))
            self.k.start("for (let t = performance.now() + 1; performance.now() < t;); await null; 2")
            r = self.k.finish()
            self.assertEqual((r.ok, r.value), (True, "2"), f"round {i}: {r}")

    def finish_as_the_guest_does(self):
        """Half a second after an interrupt that nothing came of, the guest sends the signal again."""
        try:
            return self.k.finish(0.5)
        except TimeoutError:
            os.kill(self.k.pid, signal.SIGINT)
            return self.k.finish()

    def test_idle_signals(self):
        for _ in range(5):
            os.kill(self.k.pid, signal.SIGINT)
            time.sleep(0.02)
        self.shows("let t = Date.now(); while (Date.now() - t < 100); 'fine'", "'fine'")
        self.shows("await new Promise(r => setTimeout(r, 120)); 'fine'", "'fine'")

    def test_stuck_while_idle(self):
        self.good("setTimeout(() => { for (;;) {} }, 1100); 0")
        time.sleep(1.3)
        os.kill(self.k.pid, signal.SIGINT)
        self.shows("'free'", "'free'")

    def test_user_sigint_listener(self):
        self.good("process.on('SIGINT', () => console.log('user')); process.once('SIGINT', () => {})")
        for code in ("for (;;) {}", "process.removeAllListeners('SIGINT'); for (;;) {}", "process.on('SIGINT', () => {}); for (;;) {}"):
            self.k.start(code)
            time.sleep(0.05)
            self.k.interrupt()
            self.assertEqual(self.k.finish(3).name, "Interrupted")

    def test_stale_completion_is_ignored(self):
        self.k.start("await new Promise(r => { globalThis.release = r }); 'old'")
        time.sleep(0.05)
        self.k.interrupt()
        self.assertEqual(self.k.finish(2).name, "Interrupted")
        self.shows("release(); await new Promise(r => setTimeout(r, 50)); 'new'", "'new'")


class Hostile(Base):
    def test_broken_builtins(self):
        self.good("JSON.stringify = JSON.parse = Buffer.from = Buffer.concat = Buffer.allocUnsafe = () => { throw new Error('broken') };"
                  "fs.writeSync = fs.fstatSync = setTimeout = clearTimeout = null; Reflect.apply = null;"
                  "Object.defineProperty = null; console.log = null; process.stdout.write = null; Date.now = () => 'now';"
                  "Array.prototype.push = Array.prototype.includes = Array.prototype.some = null;"
                  "process.getActiveResourcesInfo = process.listeners = process.listenerCount = null; 0")
        self.shows("1 + 1", "2")
        r = self.k.run("throw new Error('x')")
        self.assertEqual((r.ok, r.name), (False, "Error"))
        self.k.start("for (;;) {}")
        time.sleep(0.05)
        self.k.interrupt()
        self.assertEqual(self.k.finish(3).name, "Interrupted")

    def test_big_cell(self):
        self.shows("/*" + "x" * (12 << 20) + "*/ 'big'", "'big'")

    def test_end_of_wire(self):
        for code in (None, "await new Promise(r => { globalThis.r = r })", "setInterval(() => {}, 1000)"):
            k = self.kernel()
            if code:
                k.start(code)
                time.sleep(0.1)
            k.sock.shutdown(socket.SHUT_RDWR)
            k.proc.wait(3)

    def test_async_local_storage(self):
        self.shows("const als = new (require('async_hooks').AsyncLocalStorage)();"
                   "await als.run(7, async () => { await new Promise(r => setTimeout(r, 5)); return als.getStore() })", "7")
        self.k.start("als.run(1, () => setTimeout(() => { for (;;) {} }, 5)); await new Promise(r => { globalThis.r = r })")
        time.sleep(0.1)
        self.k.interrupt()
        self.assertEqual(self.k.finish(3).name, "Interrupted")
        self.shows("await als.run(8, async () => { await fs.promises.readFile('/dev/null'); return als.getStore() })", "8")

    def test_worker_threads(self):
        r = self.good("const {Worker} = require('worker_threads');"
                      "await new Promise((y, n) => new Worker('console.log(\"in worker\"); require(\"worker_threads\").parentPort.postMessage(5)', {eval: true})"
                      ".on('message', v => console.log('got', v)).on('exit', y).on('error', n))")
        self.assertIn("in worker\n", r.out)
        self.assertIn("got 5\n", r.out)

    def test_no_growth(self):
        def heap():
            return int(self.good(GC + "process.memoryUsage().heapUsed").value)

        for _ in range(50):
            self.k.run("({a: new Array(1000).fill(1)})")
        before = heap()
        for _ in range(500):
            self.k.run("console.log; ({a: new Array(1000).fill(1), b: 'x'.repeat(1000)})")
            self.k.run("throw Object.assign(new Error('x'), {big: new Array(1000).fill(2)})")
        self.assertLess(heap() - before, 3 << 20)


if __name__ == "__main__":
    unittest.main()
