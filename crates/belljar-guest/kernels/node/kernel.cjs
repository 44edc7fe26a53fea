'use strict';
// Belljar JavaScript kernel: runs notebook cells in a live Node process (18 .. 24), no dependencies.
//
//   node --expose-internals kernel.cjs        fd 0 /dev/null, 1/2 pipes, 3 the kernel wire
//
// Cells run in the main context through V8's own REPL mode (in-process inspector), which gives persistent and
// redeclarable let/const/class and top-level await. Rules that are ours:
//  * A cell is done when its completion value is known. A Promise as last expression is awaited and its result shown.
//    After success the run stays open for work the cell left behind (timeouts, requests, child processes), at most
//    DRAIN_MS; intervals, timeouts due later, listening servers and anything older than the cell are not waited for.
//  * An uncaught exception or unhandled rejection ends the active run at once, as it would end a Node process; when
//    idle it is only printed. Nothing of that kind kills the kernel.
//  * Values of declarations and loops, and timer handles, are not shown; everything else shows what the Node REPL would.
//  * A ping is answered with a pong: after an interrupt the guest wants to see that the event loop still turns. (An
//    endless chain of process.nextTick goes on after it, and only a restart helps.)
//  * Interrupt: the guest writes {"t":"interrupt","id":N} and then sends SIGINT. SIGINT stops JavaScript that is stuck;
//    the frame says which run was meant, so that a late signal cannot hit the next one. SIGINT alone works too.
//
// How SIGINT stops stuck code without a second JS thread: Node's native SIGINT watchdog terminates scripts run with
// breakOnSigint. Every way into user code (cells, ticks and microtasks, timers, I/O callbacks) is routed through one
// such script, the gate. Termination can therefore never hit the kernel's own code, which runs outside the gate.
const DRAIN_MS = 1000, POLL_MS = 50, PART_MAX = 8 << 20, FRAME_MAX = 15 << 20, TOGETHER = 64 << 10, WIRE = 3;

function fatal(e) {
  const json = Buffer.from(JSON.stringify({ fatal: { message: String(e && e.stack) } })), head = Buffer.alloc(8);
  head.writeUInt32LE(4 + json.length, 0);
  head.writeUInt32LE(json.length, 4);
  fs.writeSync(WIRE, Buffer.concat([head, json]));
  process.reallyExit(70);
}
process.on('uncaughtException', fatal);          // until start-up is over

const fs = require('fs'), vm = require('vm'), util = require('util'), path = require('path'), Module = require('module');
// Private references: user code may replace any of these on the shared objects.
const { writeSync, fstatSync, openSync, closeSync } = fs, { stringify, parse } = JSON, { apply, ownKeys } = Reflect;
const { inspect, types: { isNativeError, isPromise } } = util, { defineProperty, getOwnPropertyDescriptor } = Object;
const { setTimeout, clearTimeout, Error, String, Promise } = globalThis, { then } = Promise.prototype, { now } = Date;
const requireOwn = require, { Script } = vm, { pid, env, execPath, _kill: rawKill, nextTick } = process, reallyExit = process.reallyExit.bind(process);
const activeResources = process.getActiveResourcesInfo.bind(process);
const bytesOf = Buffer.from.bind(Buffer), alloc = Buffer.allocUnsafe.bind(Buffer);
function concat(list) {                          // Buffer.concat goes through public methods
  let size = 0, at = 0;
  for (const b of list) size += b.length;
  const out = alloc(size);
  for (const b of list) { out.set(b, at); at += b.length; }
  return out;
}
const napCell = new Int32Array(new SharedArrayBuffer(4)), { wait } = Atomics, nap = (ms) => wait(napCell, 0, 0, ms);

const emitWarning = process.emitWarning;
process.emitWarning = () => {};                 // "for internal testing only"
const { internalBinding } = require('internal/test/binding');
process.emitWarning = emitWarning;
const { ContextifyScript, startSigintWatchdog, watchdogHasPendingSigint } = internalBinding('contextify');
const { Pipe, constants: { SOCKET } } = internalBinding('pipe_wrap');
const { WriteWrap, streamBaseState, kReadBytesOrError } = internalBinding('stream_wrap');
const { setTickCallback, tickInfo } = internalBinding('task_queue');
const asyncWrap = internalBinding('async_wrap'), timerBinding = internalBinding('timers');
const timers = require('internal/timers');

let run = null;          // the active run, see startRun

// ---- the gate: the only way into user code -------------------------------------------------------------------------
const STOPPED = Symbol('stopped');
const { async_hook_fields: hookFields, async_id_fields: idFields, constants: awc } = asyncWrap;
let inGate = false, gateEntry = null, exiting = false;
let signals = 0;         // SIGINTs seen whose frame has not come yet
defineProperty(globalThis, '__belljar_gate__', { value: () => { const f = gateEntry; gateEntry = null; return f(); } });
const gateScript = new Script('__belljar_gate__()', { filename: __filename });
const runScript = ContextifyScript.prototype.runInContext, GATE_ARGS = [null, -1, false, true, false], PLAIN_ARGS = [null, -1, false, false, false];

function gate(f) {
  if (inGate) return f();
  if (watchdogHasPendingSigint()) {              // came while nothing ran; forgotten when the gate closes
    signals++;
    if (run !== null) run.stopped = true;
  }
  const depth = hookFields[awc.kStackLength];
  inGate = true;
  gateEntry = f;
  try {
    return apply(runScript, gateScript, GATE_ARGS);
  } catch (e) {
    if (!isNativeError(e) || e.code !== 'ERR_SCRIPT_EXECUTION_INTERRUPTED') throw e;
    // The terminated code never left its async scopes; Node aborts on a stack that does not match.
    while (hookFields[awc.kStackLength] > depth) asyncWrap.popAsyncContext(idFields[awc.kExecutionAsyncId]);
    if (run !== null) run.stopped = true;
    if (exiting) exiting = false; else signals++;
    return STOPPED;
  } finally {
    inGate = false;
    tickInfo[0] = 1;     // "tick scheduled": makes Node call our tick callback, not run microtasks natively, ungated
  }
}

function installGates() {
  // A listener must be known, or process.kill() on ourselves tears down the inspector. Then never let libuv take
  // SIGINT back from the watchdog (process.on('SIGINT') in a cell would).
  const { Signal } = internalBinding('signal_wrap'), { start } = Signal.prototype, known = new Signal();
  known.unref();
  known.start(2);
  Signal.prototype.start = function(n) { return n === 2 ? 0 : apply(start, this, [n]); };
  startSigintWatchdog();

  const tick = process._tickCallback;
  // After an exception Node tells of it first, and then calls again.
  setTickCallback(() => { gate(tick); if (!inGate) afterTick(); });
  tickInfo[0] = 1;
  const { processImmediate, processTimers } = timers.getTimerCallbacks(tick);
  timerBinding.setupTimers(() => { gate(processImmediate); }, (t) => {
    let next;
    // As Node does after an exception: go on with the timers that are left.
    while ((next = gate(() => processTimers(t))) === STOPPED);
    return next;
  });
  // I/O callbacks. Node swaps in its own trampoline when async hooks are used; those callbacks are then not covered.
  const resources = asyncWrap.execution_async_resources;
  asyncWrap.setCallbackTrampoline(function(asyncId, resource, callback, ...args) {
    if (resource === pipe) return apply(callback, this, args);
    resources[hookFields[awc.kStackLength] - 1] = resource;
    const result = gate(() => apply(callback, this, args));
    resources.length = hookFields[awc.kStackLength] - 1;
    return result === STOPPED ? undefined : result;
  });
  hookFields[awc.kUsesExecutionAsyncResource] = 1;
}

// Every frame is followed by a signal. See it arrive, unless it already stopped something: it must not hit a later run.
function swallowSignal() {
  for (let i = 0; i < 100; i++) {
    gate(() => {});
    if (signals > 0) { signals--; return; }
    nap(0.5);
  }
}

// ---- wire ----------------------------------------------------------------------------------------------------------
const pipe = new Pipe(SOCKET);
let chunks = [], have = 0;

function encode(head, bodies = []) {
  const json = bytesOf(stringify(head)), frame = concat([alloc(8), json, ...bodies]);
  frame.writeUInt32LE(frame.length - 4, 0);
  frame.writeUInt32LE(json.length, 4);
  return frame;
}
// One native call per frame: libuv keeps what the socket does not take, and termination cannot cut a frame in two.
function send(head, bodies) {
  const frame = encode(head, bodies);
  if (unsent === null) { write(frame); return; }
  unsent[unsent.length] = frame;
  if (frame.length > TOGETHER) flush();
}
// What a run has to say at its end goes out at once: each write wakes the guest.
let unsent = null;
function flush() {
  const frames = unsent;
  unsent = [];
  if (frames.length) write(frames.length === 1 ? frames[0] : concat(frames));
}
function write(frame) {
  const req = new WriteWrap();
  req.oncomplete = (status) => { if (status < 0) reallyExit(70); };
  req.buffer = frame;
  if (pipe.writeBuffer(req, frame) !== 0) reallyExit(70);
}

function onRead(data) {
  const n = streamBaseState[kReadBytesOrError];
  if (n < 0) reallyExit(0);
  if (n === 0) return;
  chunks[chunks.length] = bytesOf(data, 0, n);
  have += n;
  while (have >= 8) {
    if (chunks[0].length < 8 || have >= 4 + chunks[0].readUInt32LE(0)) chunks = [concat(chunks)];
    const inbox = chunks[0], end = 4 + inbox.readUInt32LE(0), body = 8 + inbox.readUInt32LE(4);
    if (inbox.length < end) break;
    const head = parse(inbox.toString('utf8', 8, body)), text = inbox.toString('utf8', body, end);
    chunks = [inbox.subarray(end)];
    have -= end;
    if (head.t === 'run') startRun(head.id, text, head.trace, head.env);
    else if (head.t === 'answer') answered(head, text);
    else if (head.t === 'ping') send({ pong: { id: head.id } }, []);
    else if (head.t === 'interrupt') {
      swallowSignal();
      if (run !== null && run.id === head.id) run.stopped = true;
    }
  }
}

// ---- output --------------------------------------------------------------------------------------------------------
// Reopened copies, so that output still flows when user code closes 1 or 2. Not possible without /proc or when the
// pipes belong to another user; then the numbers themselves are used.
const spare = [null, null, null], identity = [null, null, null];
function identify(fd) { try { const s = fstatSync(fd); return s.dev + ':' + s.ino; } catch { return null; } }
function reopen(fd) {
  const { O_RDONLY, O_WRONLY, O_APPEND } = fs.constants;
  return openSync('/proc/self/fd/' + (spare[fd] ?? fd), fd === 0 ? O_RDONLY : O_WRONLY | O_APPEND);
}
for (let fd = 0; fd < 3; fd++) {
  identity[fd] = identify(fd);
  try { spare[fd] = reopen(fd); } catch {}
}
// Node has no dup2, but open() takes the lowest free number: close the wrong one and the right one opens in its place.
function restoreFds() {
  for (let fd = 0; fd < 3; fd++) {
    if (identity[fd] === null || identify(fd) === identity[fd]) continue;
    try { closeSync(fd); } catch {}
    try { reopen(fd); } catch {}
    if (identify(fd) !== identity[fd]) return false;
  }
  return true;
}

function writeAll(fd, data) {
  const target = spare[fd] ?? fd;
  for (let at = 0; at < data.length;) {
    try {
      at += writeSync(target, data, at);
    } catch (e) {
      if (e.code !== 'EAGAIN') return;          // a child process can leave the pipe non-blocking
      nap(0.2);
    }
  }
}
const complain = (text) => writeAll(2, bytesOf(text + '\n'));

function installOutput() {
  const make = (fd) => {
    const { Writable } = require('stream');
    const s = new Writable({ autoDestroy: false, emitClose: false });
    // Straight to the pipe: no stream state that an interrupt could leave half changed, nothing buffered.
    s.write = function(chunk, encoding, done) {
      if (typeof encoding === 'function') [encoding, done] = [undefined, encoding];
      writeAll(fd, bytesOf(chunk, encoding));
      if (typeof done === 'function') nextTick(done);
      return true;
    };
    s.end = function(chunk, encoding, done) {    // must not end it for later cells
      if (typeof chunk === 'function') nextTick(chunk);
      else if (chunk != null) this.write(chunk, encoding, done);
      return this;
    };
    s.destroySoon = s.destroy = function() { return this; };
    return Object.assign(s, { fd, _type: 'pipe', _isStdio: true });
  };
  for (const [fd, name] of [[1, 'stdout'], [2, 'stderr']]) {
    let stream;
    defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream ??= make(fd) });
  }
  // The console methods without the inspector's wrapper, which would keep the last 1000 logged values alive.
  const { prototype } = console.Console;
  for (const key of ownKeys(prototype)) {
    const d = getOwnPropertyDescriptor(prototype, key);
    if (key === 'constructor' || typeof d.value !== 'function') continue;
    d.value = d.value.bind(console);
    defineProperty(console, key, d);
  }
}

// Stack frames of the kernel and of Node's internals say nothing to the author of a cell.
function installStackFilter() {
  const errors = require('internal/errors'), format = errors.prepareStackTraceCallback || errors.prepareStackTrace;
  internalBinding('errors').setPrepareStackTraceCallback((global, error, trace) => {
    try {
      const ours = (file) => file === __filename || /^node:(?:internal\/|inspector$)/.test(file);
      trace = trace.filter((f) => !ours(f.getFileName()));
    } catch {}
    return format(global, error, trace);
  });
}

// ---- display -------------------------------------------------------------------------------------------------------
const show = (v) => inspect(v, { showProxy: true });

function sendParts(result, parts) {              // parts: [[mime, string | bytes], ...]
  const list = [], bodies = [];
  let total = 0, dropped = '';
  const add = (mime, b) => { list[list.length] = [mime, b.length]; bodies[bodies.length] = b; total += b.length; };
  for (const [mime, data] of parts) {
    const b = typeof data === 'string' ? bytesOf(data) : bytesOf(data.buffer, data.byteOffset, data.byteLength);
    if (b.length <= PART_MAX && total + b.length <= FRAME_MAX) add(mime, b);
    else dropped += `[${mime} of ${(b.length / 1048576).toFixed(1)} MiB left out: too large]\n`;
  }
  if (dropped) add('text/plain', bytesOf(dropped));
  send({ display: { id: run.id, result, parts: list } }, bodies);
}

function imageMime(v) {
  if (!(v instanceof Uint8Array) || v.length < 8) return null;
  if (v[0] === 0x89 && v[1] === 0x50 && v[2] === 0x4e && v[3] === 0x47) return 'image/png';
  return v[0] === 0xff && v[1] === 0xd8 && v[2] === 0xff ? 'image/jpeg' : null;
}

const DISPLAY = Symbol.for('belljar.display');
function partsOf(v) {
  const custom = v != null && typeof v[DISPLAY] === 'function' ? v[DISPLAY]() : undefined;
  if (typeof custom === 'string') return [['text/plain', custom]];
  if (custom != null && typeof custom === 'object') {
    const data = (d) => (typeof d === 'string' || ArrayBuffer.isView(d) ? d : stringify(d) ?? 'null');
    return Object.entries(custom).map(([mime, d]) => [mime, data(d)]);
  }
  const image = imageMime(v);
  return image ? [['text/plain', show(v)], [image, v]] : [['text/plain', show(v)]];
}

let held = [];           // displayed while idle: goes to the next run, like output
function display(...values) {
  for (const v of values) if (run !== null) sendParts(false, partsOf(v)); else if (held.length < 100) held.push(partsOf(v));
}
const bundle = (parts) => display({ [DISPLAY]: () => parts });
display.html = (s) => bundle({ 'text/html': String(s) });
display.markdown = (s) => bundle({ 'text/markdown': String(s) });
display.svg = (s) => bundle({ 'image/svg+xml': String(s) });
display.json = (v) => bundle({ 'application/json': stringify(v) ?? 'null' });
display.image = (data, mime) => {
  const b = ArrayBuffer.isView(data) ? data : bytesOf(data);
  bundle({ [mime ?? imageMime(b) ?? 'image/png']: b });
};

// ---- tools: what whoever runs this code lets it call, see `tools` below ---------------------------------------------
let calls = 0;
const waiting = new Map();                       // number -> {id, resolve, reject}
class ToolError extends Error { get name() { return 'ToolError'; } }

function ask(name, body) {
  if (run === null) return Promise.reject(new ToolError('Tools can be called while a cell runs'));
  const number = ++calls, { id } = run;
  return new Promise((resolve, reject) => {
    waiting.set(number, { id, resolve, reject });
    send({ tool: { id, number, name } }, body);
  });
}
function answered({ number, ok }, text) {
  const call = waiting.get(number);
  waiting.delete(number);
  if (call === undefined || run === null || call.id !== run.id) return;
  if (ok) call.resolve(text); else call.reject(new ToolError(text));
}

const catalogue = new Map();                     // group -> Map(function -> {description, schema})
async function learn() {
  const list = parse(await ask(null, []));
  catalogue.clear();
  for (const { group, name, description, schema } of list) {
    if (!catalogue.has(group)) catalogue.set(group, new Map());
    catalogue.get(group).set(name, { description, schema });
  }
}

// Known names are listed; any other may be tried, and the server says if there is no such tool.
function tool(group, name) {
  const full = `${group}.${name}`;
  const call = async (args = {}) => {
    if (args === null || typeof args !== 'object' || Array.isArray(args)) {
      throw new TypeError(`tools.${full} takes one object with its arguments`);
    }
    return parse(await ask(full, [bytesOf(stringify(args))]));
  };
  defineProperty(call, 'name', { value: name });
  const about = () => catalogue.get(group)?.get(name);
  const lines = (s) => Object.entries(s?.properties ?? {}).map(([key, p]) =>
    `  ${key}${(s.required ?? []).includes(key) ? '' : '?'}: ${p.type ?? 'any'}  ${p.description ?? ''}`.trimEnd());
  defineProperty(call, 'schema', { get: () => about()?.schema });
  defineProperty(call, 'doc', { get: () => about() && [about().description, '', ...lines(about().schema)].join('\n') });
  return call;
}
function names(known, make, target = {}) {                    // an object whose members are made when they are asked for
  const made = new Map(), plain = (key) => typeof key === 'string' && /^[A-Za-z_]\w*$/.test(key) && key !== 'then';
  const get = (target, key) => {
    if (key in target || !plain(key) || /^(?:toJSON|constructor|inspect|default)$/.test(key)) return target[key];
    if (!made.has(key)) made.set(key, make(key));
    return made.get(key);
  };
  const ownKeys = (target) => [...Reflect.ownKeys(target), ...known()];
  const getOwnPropertyDescriptor = (target, key) => Reflect.getOwnPropertyDescriptor(target, key)
    ?? (known().includes(key) ? { value: get(target, key), enumerable: true, configurable: true } : undefined);
  return new Proxy(target, { get, ownKeys, getOwnPropertyDescriptor });
}
const tools = names(() => [...catalogue.keys()],
  (group) => names(() => [...(catalogue.get(group)?.keys() ?? [])], (name) => tool(group, name)),
  defineProperty({}, 'ToolError', { value: ToolError }));

// ---- errors --------------------------------------------------------------------------------------------------------
const isError = (e) => isNativeError(e) || e instanceof Error;

function errorText(e, where) {
  if (!isError(e)) return 'Uncaught ' + show(e);
  if (where) return `${where}\n\n${e.name}: ${e.message}`;
  try { require('internal/util').decorateErrorStack(e); } catch {}
  return show(e);
}

// Prints an error and returns what `done` says about it. Runs getters of user objects, hence the gate.
function report(e, where) {
  let text = 'Uncaught [value that cannot be shown]', name = 'Uncaught', message = '';
  const r = gate(() => {
    try {
      if (isError(e)) { name = String(e.name || 'Error'); message = String(e.message); } else message = show(e);
      if (message.length > 2000) message = message.slice(0, 2000);
      text = errorText(e, where);
    } catch {}
  });
  complain(text);
  return r === STOPPED ? null : { name, message };
}

function onUncaught(e) {
  if (e === EXIT) return;
  if (run !== null && run.outcome === null) run.outcome = { error: true, value: e };
  else {
    const failed = report(e);
    if (run !== null) run.failed ??= failed;
  }
}
// A cell that installs its own listener wants to handle these itself.
const handlers = {};
for (const event of ['uncaughtException', 'unhandledRejection']) {
  handlers[event] = (e) => {
    let others = 0;
    try { others = process.listenerCount(event) - 1; } catch {}
    if (others < 1) onUncaught(e);
  };
}
function installHandlers() {
  for (const event in handlers) {
    try { if (!process.listeners(event).includes(handlers[event])) process.on(event, handlers[event]); } catch {}
  }
}

// process.exit ends the cell: stop everything on the stack the way an interrupt does, so no catch block sees it.
const EXIT = new Error('process.exit');
function exit(code) {
  if (run !== null) run.exit = Number(code ?? process.exitCode ?? 0) || 0;
  if (!inGate) { if (run !== null) run.stopped = true; throw EXIT; }
  exiting = true;
  rawKill(pid, 2);
  for (;;);
}

// ---- cell source ---------------------------------------------------------------------------------------------------
// V8's REPL mode lets only like replace like (let/class by let/class, const by const), knows no import declarations, and
// its scripts cannot import(). Cells are rewritten: var, const and function at top level become let, so that any name can
// be declared anew in any way (the price: no "Assignment to constant variable"); imports become calls of IMPORT.
const IMPORT = 'ìmport';                         // six characters, like the keyword, so that columns stay right
const AWAITED = 'ìwaited';                       // see connect()
const SILENT = /^(?:Variable|Class|Import|Export\w*)Declaration$|^(?:For|While|DoWhile)\w*Statement$/;
const DECLARES = /\b(?:import|export|await|using|var|const|let|class|function)\b|^\s*\{/;
const NEEDS_REWRITE = /\b(?:import|export|await|var|const|function)\b|^\s*\{/;

function parseCell(code) {
  try {
    return require('internal/deps/acorn/acorn/dist/acorn').parse(code, {
      ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowImportExportEverywhere: true, allowHashBang: true,
    });
  } catch { return null; }                       // V8 has the last word on what is wrong
}
function lastIsSilent(ast) {
  if (ast === null) return false;
  const rest = ast.body.filter((n) => n.type !== 'FunctionDeclaration');
  return rest.length > 0 && SILENT.test(rest[rest.length - 1].type);
}

function rewrite(code) {
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code) && parseCell(`(${code}\n)`) !== null) code = `(${code}\n)`;
  const ast = parseCell(code);
  if (ast === null) return { code };
  const edits = [], functions = new Map(), cut = [], vars = new Set();
  const edit = (start, end, text) => edits.push({ start, end, text });
  const render = (start, end, list) => {
    let out = '', at = start;
    const inside = list.filter((e) => e.start >= start && e.end <= end);
    for (const e of inside.sort((a, b) => a.start - b.start || a.end - b.end)) {
      if (e.start < at) continue;                // inside a part that is replaced as a whole
      out += code.slice(at, e.start) + e.text;
      at = e.end;
    }
    return out + code.slice(at, end);
  };
  const blank = (s) => s.replace(/[^\n\r]/g, ' ');
  const bind = (p) => {
    if (!p) return;
    if (p.type === 'Identifier') vars.add(p.name);
    else if (p.type === 'ObjectPattern') p.properties.forEach((q) => bind(q.value ?? q.argument));
    else if (p.type === 'ArrayPattern') p.elements.forEach(bind);
    else bind(p.left ?? p.argument);             // default value, rest
  };
  const walk = (node, inFunction, loopHead) => {
    if (node.type === 'ImportExpression' || (node.type === 'MetaProperty' && node.meta.name === 'import')) {
      edit(node.start, node.start + 6, IMPORT);
    } else if (node.type === 'AwaitExpression' && !inFunction) {
      edit(node.argument.start, node.argument.start, AWAITED + '(');
      edit(node.argument.end, node.argument.end, ')');
    } else if (node.type === 'VariableDeclaration' && node.kind === 'var' && !inFunction) {
      const { declarations: d } = node;
      d.forEach((x) => bind(x.id));
      edit(node.start, node.start + 3, loopHead ? '   ' : 'void(');
      if (!loopHead) edit(d[d.length - 1].end, d[d.length - 1].end, ')');
    }
    const inner = inFunction || /Function|StaticBlock|PropertyDefinition/.test(node.type);
    for (const key of Object.keys(node)) {
      const child = node[key], each = /^For(?:In|Of)/.test(node.type) && key === 'left';
      if (Array.isArray(child)) child.forEach((c) => c && typeof c.type === 'string' && walk(c, inner));
      else if (child && typeof child.type === 'string') walk(child, inner, each);
    }
  };
  const nameOf = (n) => (n.type === 'Identifier' ? n.name : n.raw);
  for (let node of ast.body) {
    if (node.type === 'ImportDeclaration') {
      let names = '', ns = '';
      for (const s of node.specifiers) {
        if (s.type === 'ImportNamespaceSpecifier') ns = s.local.name;
        else names += `${s.type === 'ImportDefaultSpecifier' ? 'default' : nameOf(s.imported)}: ${s.local.name}, `;
      }
      const attributes = (node.attributes ?? []).map((a) => `${nameOf(a.key)}: ${a.value.raw}`);
      const call = `await ${IMPORT}(${node.source.raw}${attributes.length ? `, {with: {${attributes}}}` : ''})`;
      let text = names ? `let {${names}} = ${ns || call};` : `void ${call};`;
      if (ns) text = `let ${ns} = ${call};${names ? text : ''}`;
      edit(node.start, node.end, text + '\n'.repeat(code.slice(node.start, node.end).split('\n').length - 1));
      continue;
    }
    if (/^Export/.test(node.type)) {             // harmless in a cell: keep what it declares
      const end = node.declaration?.start ?? node.end;
      edit(node.start, end, blank(code.slice(node.start, end)));
      if (!node.declaration) continue;
      node = node.declaration;
    }
    if (node.kind === 'const') edit(node.start, node.start + 5, 'let  ');
    if (node.type === 'FunctionDeclaration' && node.id) {
      functions.set(node.id.name, node);
      cut.push({ start: node.start, end: node.end, text: blank(code.slice(node.start, node.end)) });
    }
    walk(node, false);
  }
  if (!edits.length && !functions.size) return { code, silent: lastIsSilent(ast) };

  // Functions move to a script of their own that runs first (hoisting), at the lines where they stood.
  const strict = ast.body[0]?.directive === 'use strict' ? '"use strict";' : '';
  const nodes = [...functions.values()].sort((a, b) => a.start - b.start);
  let before = '', at = 0;
  for (const f of nodes) {
    const gap = blank(code.slice(at, f.start)), line = Math.max(gap.lastIndexOf('\n'), 0);
    before += `${gap.slice(0, line)}let ${f.id.name}=${gap.slice(line)}`;   // on the line before: moves no column
    before += render(f.start, f.end, [...edits, { start: f.id.start, end: f.id.end, text: blank(f.id.name) }]) + ';';
    at = f.end;
  }
  const main = render(0, code.length, [...cut, ...edits]), names = [...vars].filter((v) => !functions.has(v));
  return { code: main, before, strict, vars: names, silent: lastIsSilent(ast) };
}

// ---- running -------------------------------------------------------------------------------------------------------
// When the promise of an unfinished evaluation is garbage collected, V8's inspector answers from within the collector,
// which crashes Node 22 and later. So what a cell awaits is held on to, and a run that ends with its evaluation
// unfinished takes its session with it.
const { Session } = require('inspector');
let session, post, awaited;
let receiver, received;  // objectId of a function of ours that is handed the real values; the last one it got

function connect() {
  if (session) session.disconnect();
  session = new Session();
  session.connect();
  post = session.post.bind(session);
  const name = '__belljar_receive__';
  defineProperty(globalThis, name, { value: (v) => { received = v; }, configurable: true });
  post('Runtime.evaluate', { expression: name, objectGroup: 'kernel' }, (e, r) => { receiver = r.result.objectId; });
  delete globalThis[name];
}

function evaluate(expression, callback) {
  const how = { replMode: true, awaitPromise: true, objectGroup: 'cell', silent: true };
  post('Runtime.evaluate', { expression, ...how }, callback);
}

function realValue(remote) {
  if (!remote.objectId) {
    if (remote.unserializableValue === undefined) return remote.subtype === 'null' ? null : remote.value;
    const s = remote.unserializableValue;
    return s.endsWith('n') ? BigInt(s.slice(0, -1)) : Number(s);
  }
  const { objectId } = remote, functionDeclaration = 'function(v){this(v)}';
  post('Runtime.callFunctionOn', { objectId: receiver, functionDeclaration, arguments: [{ objectId }], silent: true });
  const v = received;
  received = undefined;
  return v;
}

// Names of var declarations that do not exist yet, or cannot be assigned, become let variables.
function declareVars(names) {
  let known = [], text = '';
  if (names.length) post('Runtime.globalLexicalScopeNames', {}, (e, r) => { known = e ? [] : r.names; });
  for (const name of names) {
    const exists = known.includes(name);
    let usable = false;
    const probe = { expression: `${name}=${name}`, silent: true, objectGroup: 'cell' };
    if (exists) post('Runtime.evaluate', probe, (e, r) => { usable = !e && !r.exceptionDetails; });
    if (!usable) text += exists ? `let ${name};` : `let ${name}=globalThis.${name};`;
  }
  return text;
}

let traced;              // what the last run was told as its TRACEPARENT
function setTrace(trace) {
  if (trace !== undefined) env.TRACEPARENT = trace;
  else if (traced !== undefined && env.TRACEPARENT === traced) delete env.TRACEPARENT;
  traced = trace;
}

function changeEnvironment(changes) {
  for (const name of ownKeys(changes)) {
    if (changes[name] === null) delete env[name];
    else env[name] = changes[name];
  }
  try { requireOwn('./proxy.cjs'); } catch {}
}

function startRun(id, source, trace, changes) {
  gate(() => {});        // forgets a signal that came while idle
  setTrace(trace);
  if (changes !== undefined) changeEnvironment(changes);
  signals = 0;
  const me = run = {
    id, source, silent: undefined, base: pendingWork(0), deadline: 0,
    outcome: null,       // {error, value, where}: how the cell itself ended
    shown: false,        // outcome printed; from then on draining
    failed: null,        // {name, message} of the first error printed
    stopped: false,      // interrupted or exited
    exit: null,          // code given to process.exit
    pending: undefined,  // whether the inspector has still to answer, if it was asked
  };
  installHandlers();
  gate(() => {
    for (const parts of held.splice(0)) sendParts(false, parts);
    if (DECLARES.test(source) || !runPlain(me)) runCell(me);
  });
}

// Nothing is declared, imported or awaited: an ordinary script does the same without V8's inspector. Returns false if it
// is no such thing; then the inspector says what it is.
function runPlain(me) {
  let script;
  try { script = new Script(me.source, { __proto__: null, filename: `cell-${me.id}.js` }); } catch { return false; }
  try { settle(me, apply(runScript, script, PLAIN_ARGS)); } catch (e) { me.outcome ??= { error: true, value: e }; }
  return true;
}

function runCell(me) {
  const { source, id } = me;
  let cell = { code: source };
  me.pending = true;
  try { if (NEEDS_REWRITE.test(source)) cell = rewrite(source); } catch {}
  const name = `\n//# sourceURL=cell-${id}.js`;
  me.silent = cell.silent;
  const before = cell.before === undefined ? '' : declareVars(cell.vars) + cell.before;
  if (before) evaluate(cell.strict + before + name);
  let compiling = true;                          // V8 reports syntax errors at once, all else through a promise
  evaluate(cell.code + name, (e, r) => {
    me.pending = false;
    if (run !== me || me.outcome !== null) return;
    if (e) { me.outcome = { error: true, value: e }; return; }     // e.g. the awaited promise was garbage collected
    const value = realValue(r.exceptionDetails ? r.exceptionDetails.exception : r.result);
    if (r.exceptionDetails) {
      const where = compiling ? syntaxPlace(value, r.exceptionDetails, cell.code, id) : null;
      me.outcome = { error: true, value, where };
    } else settle(me, value);
  });
  compiling = false;
}

function settle(me, value) {
  if (!isPromise(value)) me.outcome ??= { value };
  else apply(then, value, [(v) => { me.outcome ??= { value: v }; }, (v) => { me.outcome ??= { error: true, value: v }; }]);
}

function syntaxPlace(e, details, code, id) {
  if (!isNativeError(e) || e.name !== 'SyntaxError' || /\n +at /.test(e.stack)) return null;
  const text = code.split('\n')[details.lineNumber];
  if (text === undefined) return null;
  return `cell-${id}.js:${details.lineNumber + 1}\n${text}\n${' '.repeat(details.columnNumber)}^`;
}

// Runs outside the gate after every callback from the event loop: moves the active run towards its end.
let poll = null;
function afterTick() {
  const me = run;
  if (me === null) return;
  unsent = [];
  try { proceed(me); } finally { flush(); unsent = null; }
  if (run === null) putRight(me);
}
function proceed(me) {
  if (!me.stopped && me.outcome !== null && !me.shown) {
    me.shown = true;
    showOutcome(me);
    me.deadline = now() + DRAIN_MS;
  }
  if (me.stopped || (me.shown && (me.failed !== null || !draining(me)))) { finish(me); return; }
  // Wakes the loop for the drain deadline and for a SIGINT that came without a frame.
  poll ??= setTimeout(() => { poll = null; }, POLL_MS).unref();
}

function showOutcome(me) {
  const { error, value, where } = me.outcome;
  last[error ? '_error' : '_'] = value;
  if (error) me.failed = report(value, where);
  else if (value !== undefined) {
    gate(() => {
      try {
        if (value instanceof timers.Timeout || value instanceof timers.Immediate) return;
        me.silent ??= /\b(?:for|while|let|class)\b/.test(me.source) && lastIsSilent(parseCell(me.source));
        if (!me.silent) sendParts(true, partsOf(value));
      } catch (e) { onUncaught(e); }
    });
  }
}

const NOT_AWAITED = /Server|Signal|FSEvent|StatWatcher|MessagePort|Worker|TTY|^Timeout$/;
function pendingWork(limit) {                    // work that will end, one-shot timers, those of them due within limit
  const kinds = activeResources(), found = { work: 0, timers: 0, due: 0 }, t = timerBinding.getLibuvNow();
  if (kinds.length === 1) found.work = 1;        // only the wire
  if (kinds.length < 2) return found;
  const server = /Server/.test(String(kinds));   // then sockets may be connections it keeps open
  for (const k of kinds) if (!NOT_AWAITED.test(k) && !(server && /^(?:TCP|Pipe)/.test(k))) found.work++;
  for (const key of ownKeys(timers.timerListMap)) {
    const list = timers.timerListMap[key];
    for (let x = list._idlePrev; x !== list; x = x._idlePrev) {
      if (!x[timers.kRefed] || x._repeat !== null) continue;
      found.timers++;
      if (x._idleStart + x._idleTimeout - t <= limit) found.due++;
    }
  }
  return found;
}
function draining(me) {
  const left = me.deadline - now(), p = pendingWork(left);
  return left > 0 && (p.work > me.base.work || (p.due > 0 && p.timers > me.base.timers));
}

function finish(me) {
  run = null;
  if (waiting.size) waiting.clear();             // nobody is there to be told
  if (poll !== null) { clearTimeout(poll); poll = null; }
  let error = me.failed;
  if (me.exit !== null) error = me.exit === 0 ? null : { name: 'Exit', message: `process.exit(${me.exit})` };
  else if (me.stopped) error = { name: 'Interrupted', message: 'interrupted' };
  const interrupted = me.stopped && me.exit === null;
  if (interrupted) complain('Interrupted');
  const done = { id: me.id, ok: error === null };
  if (error !== null) { done.error = error; done.interrupted = interrupted; }
  send({ done });
}

// What the run left behind, while whoever asked for it reads the answer.
function putRight(me) {
  awaited = undefined;
  if (me.pending) connect(); else if (me.pending === false) post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
  process.exitCode = undefined;
  if (!restoreFds()) reallyExit(71);             // output is lost for good: a new kernel is better
}

// ---- what cells see ------------------------------------------------------------------------------------------------
const last = { _: undefined, _error: undefined };
function installGlobals() {
  const cwd = process.cwd(), file = path.join(cwd, 'cell.js'), main = new Module(file, null);
  main.filename = file;
  main.paths = Module._nodeModulePaths(cwd);
  main.loaded = true;
  process.argv = [execPath, file];
  process.execArgv = [];
  process.mainModule = main;                     // require.main === module holds in a cell
  main._compile('module.exports = { require, load: (s, o) => import(s, o) };', file);
  const { require: req, load: loadModule } = main.exports;
  // A module `tools` of the user's own comes first.
  const isTools = (e, s) => s === 'tools' && /^(?:ERR_)?MODULE_NOT_FOUND$/.test(e?.code);
  const load = (s, o) => loadModule(s, o).catch(async (e) => {
    if (!isTools(e, s)) throw e;
    await learn();
    return { __proto__: null, default: tools, ToolError, ...tools };
  });
  const resolve = Module._resolveFilename, loadFile = Module._load;
  Module._load = function(request, ...rest) {
    if (request !== 'tools') return apply(loadFile, this, [request, ...rest]);
    try { apply(resolve, Module, [request, ...rest]); } catch (e) { if (isTools(e, request)) return tools; throw e; }
    return apply(loadFile, this, [request, ...rest]);
  };
  main.exports = {};
  req.main = main;
  const href = (f) => (path.isAbsolute(f) ? require('url').pathToFileURL(f).href : f);
  load.meta = { url: href(file), filename: file, dirname: cwd, main: true, resolve: (s) => href(req.resolve(s)) };
  const define = (name, value) => defineProperty(globalThis, name, { value, writable: true, configurable: true });
  for (const name of Module.builtinModules) {
    if (/\/|^_|^(?:module|process|console)$/.test(name)) continue;
    const get = () => { define(name, req(name)); return globalThis[name]; };
    defineProperty(globalThis, name, { configurable: true, enumerable: false, get, set: (v) => define(name, v) });
  }
  const own = { require: req, module: main, exports: main.exports, __filename: file, __dirname: cwd, display };
  own[IMPORT] = load;
  own[AWAITED] = (v) => awaited = v;
  for (const name in own) define(name, own[name]);
  for (const name in last) {
    defineProperty(globalThis, name, { configurable: true, get: () => last[name], set: (v) => define(name, v) });
  }
  process.exit = process.reallyExit = exit;
}

installOutput();
installStackFilter();
connect();
installGlobals();
process.removeListener('uncaughtException', fatal);
installHandlers();
pipe.open(WIRE);
pipe.onread = onRead;
installGates();
pipe.readStart();
send({ hello: { pid, language: 'javascript', version: process.versions.node } });
// A kernel kept in reserve can use the time: the parser and the inspector load lazily.
setTimeout(() => { if (run === null) { rewrite('const a = 1'); evaluate('0', () => {}); } }, 100).unref();
