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
//  * Interrupt: the guest writes {"t":"interrupt","id":N} and then sends SIGINT. SIGINT stops JavaScript that is stuck;
//    the frame says which run was meant, so that a late signal cannot hit the next one. SIGINT alone works too.
//
// How SIGINT stops stuck code without a second JS thread: Node's native SIGINT watchdog terminates scripts run with
// breakOnSigint. Every way into user code (cells, ticks and microtasks, timers, I/O callbacks) is routed through one
// such script, the gate. Termination can therefore never hit the kernel's own code, which runs outside the gate.
const DRAIN_MS = 1000, POLL_MS = 50, PART_MAX = 8 << 20, FRAME_MAX = 15 << 20, WIRE = 3;

const fs = require('fs'), vm = require('vm'), util = require('util'), path = require('path'), Module = require('module');
// User code may replace any of these on the shared objects.
const { writeSync, fstatSync, openSync, closeSync } = fs;
const { stringify, parse } = JSON, { apply, ownKeys } = Reflect, { inspect, types: { isNativeError, isPromise } } = util;
const { defineProperty, getOwnPropertyDescriptor } = Object, { setTimeout, clearTimeout, Error, String, Promise } = globalThis;
const { then } = Promise.prototype, { now } = Date, { pid, execPath } = process, reallyExit = process.reallyExit.bind(process);
const activeResources = process.getActiveResourcesInfo.bind(process), rawKill = process._kill;
const bytesOf = Buffer.from.bind(Buffer), alloc = Buffer.allocUnsafe.bind(Buffer), concat = Buffer.concat.bind(Buffer);

const emitWarning = process.emitWarning;
process.emitWarning = () => {};                 // "for internal testing only"
const { internalBinding } = require('internal/test/binding');
process.emitWarning = emitWarning;
const { ContextifyScript, startSigintWatchdog, stopSigintWatchdog, watchdogHasPendingSigint } = internalBinding('contextify');
const { Pipe, constants: { SOCKET } } = internalBinding('pipe_wrap');
const { WriteWrap, streamBaseState, kReadBytesOrError } = internalBinding('stream_wrap');
const { setTickCallback, tickInfo } = internalBinding('task_queue');
const asyncWrap = internalBinding('async_wrap'), timerBinding = internalBinding('timers');
const timers = require('internal/timers');

let run = null;          // the active run: {id, code, outcome, failed, stopped, exit, shown, deadline, base, quiet}

// ---- the gate: the only way into user code -------------------------------------------------------------------------
const STOPPED = Symbol('stopped');
const { async_hook_fields: hookFields, async_id_fields: idFields, constants: awc } = asyncWrap;
let inGate = false, gateEntry = null, unclaimedSignals = 0;
defineProperty(globalThis, '__belljar_gate__', { value: () => { const f = gateEntry; gateEntry = null; return f(); } });
const gateScript = new vm.Script('__belljar_gate__()', { filename: __filename });
const runScript = ContextifyScript.prototype.runInContext, GATE_ARGS = [null, -1, false, true, false];

function gate(f) {
  if (inGate) return f();
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
    if (run === null || run.exit === null) unclaimedSignals++;
    return STOPPED;
  } finally {
    inGate = false;
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
  setTickCallback(function() {
    try { gate(tick); } finally {
      // Keeps Node from running microtasks natively, outside the gate.
      tickInfo[0] = 1;
      if (!inGate) afterTick();
    }
  });
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

function resetSigint() { stopSigintWatchdog(); startSigintWatchdog(); }

// A frame announces a signal: see it arrive before going on, unless it already stopped something.
function swallowSignal() {
  if (unclaimedSignals > 0) { unclaimedSignals--; return; }
  const nap = new Int32Array(new SharedArrayBuffer(4));
  for (let i = 0; i < 100 && !watchdogHasPendingSigint(); i++) Atomics.wait(nap, 0, 0, 0.5);
  if (watchdogHasPendingSigint()) resetSigint();
}

// ---- wire ----------------------------------------------------------------------------------------------------------
const pipe = new Pipe(SOCKET);
let inbox = alloc(0);

// One native call per frame: libuv keeps what the socket does not take, and termination cannot cut a frame in two.
function send(head, body) {
  const json = bytesOf(stringify(head)), size = body ? body.length : 0, frame = alloc(8 + json.length + size);
  frame.writeUInt32LE(4 + json.length + size, 0);
  frame.writeUInt32LE(json.length, 4);
  frame.set(json, 8);
  if (body) frame.set(body, 8 + json.length);
  const req = new WriteWrap();
  req.oncomplete = (status) => { if (status < 0) reallyExit(70); };
  req.buffer = frame;
  if (pipe.writeBuffer(req, frame) !== 0) reallyExit(70);
}

function onRead(data) {
  const n = streamBaseState[kReadBytesOrError];
  if (n < 0) reallyExit(0);
  if (n === 0) return;
  const chunk = bytesOf(data, 0, n);
  inbox = inbox.length ? concat([inbox, chunk]) : chunk;
  while (inbox.length >= 8) {
    const end = 4 + inbox.readUInt32LE(0), body = 8 + inbox.readUInt32LE(4);
    if (inbox.length < end) break;
    const head = parse(inbox.toString('utf8', 8, body)), text = inbox.toString('utf8', body, end);
    inbox = inbox.subarray(end);
    if (head.t === 'run') startRun(head.id, text);
    else if (head.t === 'interrupt') {
      swallowSignal();
      if (run !== null && run.id === head.id) run.stopped = true;
    }
  }
}

// ---- output --------------------------------------------------------------------------------------------------------
// Reopened copies, so that output still flows when user code closes 1 or 2. Not possible without /proc or when the
// pipes belong to another user; then the numbers themselves are used.
const spare = [null, null, null], ident = [null, null, null];
for (let fd = 0; fd < 3; fd++) {
  try {
    const s = fstatSync(fd);
    ident[fd] = s.dev + ':' + s.ino;
    spare[fd] = openSync('/proc/self/fd/' + fd, fd ? fs.constants.O_WRONLY | fs.constants.O_APPEND : fs.constants.O_RDONLY);
  } catch {}
}

function intact(fd) {
  try { const s = fstatSync(fd); return s.dev + ':' + s.ino === ident[fd]; } catch { return false; }
}

// Node has no dup2, but open() returns the lowest free number: free the wrong one and open the right thing there.
function restoreFds() {
  for (let fd = 0; fd < 3; fd++) {
    if (ident[fd] === null || intact(fd)) continue;
    try { closeSync(fd); } catch {}
    try {
      const got = openSync('/proc/self/fd/' + spare[fd], fd ? fs.constants.O_WRONLY | fs.constants.O_APPEND : fs.constants.O_RDONLY);
      if (got !== fd) closeSync(got);
    } catch {}
    if (!intact(fd)) return false;
  }
  return true;
}

const napCell = new Int32Array(new SharedArrayBuffer(4));
function writeAll(fd, data) {
  const target = spare[fd] ?? fd;
  for (let at = 0; at < data.length;) {
    try {
      at += writeSync(target, data, at);
    } catch (e) {
      if (e.code !== 'EAGAIN') return;          // a child process can leave the pipe non-blocking
      Atomics.wait(napCell, 0, 0, 0.2);
    }
  }
}
const complain = (text) => writeAll(2, bytesOf(text + '\n'));

function installOutput() {
  const make = (fd) => {
    const { Writable } = require('stream');
    const s = new Writable({
      decodeStrings: false, autoDestroy: false, emitClose: false,
      write(chunk, encoding, done) { writeAll(fd, typeof chunk === 'string' ? bytesOf(chunk, encoding) : chunk); done(); },
    });
    s.fd = fd;
    s._type = 'pipe';
    s._isStdio = true;
    s.destroySoon = s.destroy = function() { return this; };
    s.end = function(chunk, encoding, done) {    // process.stdout.end() must not end it for later cells
      if (chunk != null && typeof chunk !== 'function') this.write(chunk, typeof encoding === 'string' ? encoding : undefined);
      for (const f of [chunk, encoding, done]) if (typeof f === 'function') process.nextTick(f);
      return this;
    };
    return s;
  };
  const streams = [];
  for (const [fd, name] of [[1, 'stdout'], [2, 'stderr']]) {
    defineProperty(process, name, { configurable: true, enumerable: true, get: () => streams[fd] ??= make(fd) });
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
    const kept = [];
    for (let i = 0; i < trace.length; i++) {
      const file = trace[i].getFileName();
      if (typeof file === 'string' && (file === __filename || /^node:(?:internal\/|inspector$)/.test(file))) continue;
      kept[kept.length] = trace[i];
    }
    return format(global, error, kept);
  });
}

// ---- display -------------------------------------------------------------------------------------------------------
const show = (v) => inspect(v, { showProxy: true });
const size = (n) => (n / 1048576).toFixed(1) + ' MiB';

function sendParts(id, result, parts) {          // parts: [[mime, string | bytes], ...]
  const list = [], bodies = [];
  let total = 0, dropped = '';
  for (const [mime, data] of parts) {
    const b = typeof data === 'string' ? bytesOf(data) : bytesOf(data.buffer, data.byteOffset, data.byteLength);
    if (b.length > PART_MAX || total + b.length > FRAME_MAX) { dropped += `[${mime} of ${size(b.length)} left out: too large]\n`; continue; }
    total += b.length;
    list.push([mime, b.length]);
    bodies.push(b);
  }
  if (dropped) { list.push(['text/plain', dropped.length]); bodies.push(bytesOf(dropped)); }
  send({ t: 'display', id, result, parts: list }, concat(bodies));
}

function imageMime(v) {
  if (!(v instanceof Uint8Array) || v.length < 8) return null;
  if (v[0] === 0x89 && v[1] === 0x50 && v[2] === 0x4e && v[3] === 0x47) return 'image/png';
  return v[0] === 0xff && v[1] === 0xd8 && v[2] === 0xff ? 'image/jpeg' : null;
}

const DISPLAY = Symbol.for('belljar.display'), BUNDLE = Symbol('bundle');
function partsOf(v) {
  let custom = v != null && typeof v[DISPLAY] === 'function' ? v[DISPLAY]() : undefined;
  if (custom != null && custom[BUNDLE]) custom = custom[BUNDLE];
  if (typeof custom === 'string') return [['text/plain', custom]];
  if (custom != null && typeof custom === 'object') {
    return Object.entries(custom).map(([m, d]) => [m, typeof d === 'string' || ArrayBuffer.isView(d) ? d : stringify(d)]);
  }
  const image = imageMime(v);
  return image ? [['text/plain', show(v)], [image, v]] : [['text/plain', show(v)]];
}

let lastId = 0;
function display(...values) { for (const v of values) sendParts(run ? run.id : lastId, false, partsOf(v)); }
const bundle = (parts) => display({ [DISPLAY]: () => parts });
display.html = (s) => bundle({ 'text/html': String(s) });
display.markdown = (s) => bundle({ 'text/markdown': String(s) });
display.svg = (s) => bundle({ 'image/svg+xml': String(s) });
display.json = (v) => bundle({ 'application/json': stringify(v) ?? 'null' });
display.image = (data, mime) => {
  const b = ArrayBuffer.isView(data) ? data : bytesOf(data);
  bundle({ [mime ?? imageMime(b) ?? 'image/png']: b });
};

// ---- errors --------------------------------------------------------------------------------------------------------
const isError = (e) => isNativeError(e) || e instanceof Error;

function errorText(e, where) {
  if (!isError(e)) return 'Uncaught ' + show(e);
  if (where) return `${where.file}:${where.line}\n${where.text}\n${' '.repeat(where.column)}^\n\n${e.name}: ${e.message}`;
  try { require('internal/util').decorateErrorStack(e); } catch {}
  return show(e);
}

// Prints an error and returns what `done` says about it. Runs getters of user objects, hence the gate.
function report(e, where) {
  let text = 'Uncaught [value that cannot be shown]', name = 'Uncaught', message = '';
  const r = gate(() => {
    try {
      if (isError(e)) { name = String(e.name || 'Error'); message = String(e.message); } else message = show(e);
      text = errorText(e, where);
    } catch {}
  });
  complain(text);
  return r === STOPPED ? null : { name, message: message.slice(0, 2000) };
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
const onException = (e) => { if (process.listenerCount('uncaughtException') < 2) onUncaught(e); };
const onRejection = (e) => { if (process.listenerCount('unhandledRejection') < 2) onUncaught(e); };
function installHandlers() {
  if (!process.listeners('uncaughtException').includes(onException)) process.on('uncaughtException', onException);
  if (!process.listeners('unhandledRejection').includes(onRejection)) process.on('unhandledRejection', onRejection);
}

// process.exit ends the cell: stop everything on the stack the way an interrupt does, so no catch block sees it.
const EXIT = new Error('process.exit');
function exit(code) {
  if (run !== null) run.exit = Number(code ?? process.exitCode ?? 0) || 0;
  if (!inGate) { if (run !== null) run.stopped = true; throw EXIT; }
  rawKill(pid, 2);
  for (;;);
}

// ---- cell source ---------------------------------------------------------------------------------------------------
// V8's REPL mode lets only like replace like (let/class by let/class, const by const), knows no import declarations, and
// its scripts cannot import(). Cells are rewritten: var, const and function at top level become let, so that any name can
// be declared anew in any way (the price: no "Assignment to constant variable"); imports become calls of IMPORT.
const IMPORT = 'ìmport';                         // six characters, like the keyword, so that columns stay right
const SILENT = /^(?:Function|Variable|Class|Import|Export\w*)Declaration$|^(?:For|While|DoWhile)\w*Statement$/;
const NEEDS_REWRITE = /\b(?:import|export|var|const|function)\b|^\s*\{/;

function parseCell(code) {
  try {
    return require('internal/deps/acorn/acorn/dist/acorn').parse(code, {
      ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowImportExportEverywhere: true, allowHashBang: true,
    });
  } catch { return null; }                       // V8 has the last word on what is wrong
}
const lastIsSilent = (ast) => ast !== null && ast.body.length > 0 && SILENT.test(ast.body[ast.body.length - 1].type);

function rewrite(code) {
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code) && parseCell(`(${code}\n)`) !== null) code = `(${code}\n)`;
  const ast = parseCell(code);
  if (ast === null) return { code };
  const edits = [], functions = new Map(), vars = new Set();
  const edit = (start, end, text) => edits.push({ start, end, text });
  const render = (start, end, list) => {
    let out = '', at = start;
    for (const e of list.filter((e) => e.start >= start && e.end <= end).sort((a, b) => a.start - b.start)) {
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
      const text = ns ? `let ${ns} = ${call}${names ? `, {${names}} = ${ns}` : ''}` : names ? `let {${names}} = ${call}` : `void ${call}`;
      edit(node.start, node.end, text + ';' + '\n'.repeat(code.slice(node.start, node.end).split('\n').length - 1));
      continue;
    }
    if (/^Export/.test(node.type)) {             // harmless in a cell: keep what it declares
      const target = node.declaration;
      edit(node.start, target ? target.start : node.end, blank(code.slice(node.start, target ? target.start : node.end)));
      if (!target) continue;
      node = target;
    }
    if (node.kind === 'const') edit(node.start, node.start + 5, 'let  ');
    if (node.type === 'FunctionDeclaration' && node.id) functions.set(node.id.name, node);
    walk(node, false);
  }
  if (!edits.length && !functions.size) return { code, silent: lastIsSilent(ast) };

  // Functions move to a script of their own that runs first (hoisting), at the lines where they stood.
  const strict = ast.body[0]?.directive === 'use strict' ? '"use strict";' : '';
  const nodes = [...functions.values()].sort((a, b) => a.start - b.start);
  let before = '', at = 0;
  for (const f of nodes) {
    const gap = blank(code.slice(at, f.start)), line = gap.lastIndexOf('\n');   // at the end of a line it moves no column
    before += line < 0 ? `${gap}let ${f.id.name}=` : `${gap.slice(0, line)}let ${f.id.name}=${gap.slice(line)}`;
    before += render(f.start, f.end, [...edits, { start: f.id.start, end: f.id.end, text: blank(f.id.name) }]) + ';';
    at = f.end;
  }
  const cut = nodes.map((f) => ({ start: f.start, end: f.end, text: blank(code.slice(f.start, f.end)) }));
  const main = render(0, code.length, [...cut, ...edits.filter((e) => !nodes.some((f) => e.start >= f.start && e.end <= f.end))]);
  return { code: main, before, strict, vars: [...vars].filter((v) => !functions.has(v)), silent: lastIsSilent(ast) };
}

// ---- running -------------------------------------------------------------------------------------------------------
const { Session } = require('inspector');
const session = new Session();
const post = session.post.bind(session);
let receiver;            // objectId of a function of ours that is handed the real values
let received;

function evaluate(expression, callback) {
  post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, objectGroup: 'cell', silent: true }, callback);
}

function realValue(remote) {
  if (!remote.objectId) {
    if (remote.unserializableValue === undefined) return remote.subtype === 'null' ? null : remote.value;
    const s = remote.unserializableValue;
    return s.endsWith('n') ? BigInt(s.slice(0, -1)) : Number(s);
  }
  post('Runtime.callFunctionOn', {
    objectId: receiver, functionDeclaration: 'function(v){this(v)}', arguments: [{ objectId: remote.objectId }], silent: true,
  });
  const v = received;
  received = undefined;
  return v;
}

// The names of a cell's var declarations that do not exist yet, or only as const, become let variables.
function declareVars(names) {
  let known;
  post('Runtime.globalLexicalScopeNames', {}, (e, r) => { known = e ? [] : r.names; });
  let text = '';
  for (const name of names) {
    let writable = false;
    if (known.includes(name)) post('Runtime.evaluate', { expression: `${name}=${name}`, silent: true, objectGroup: 'cell' }, (e, r) => { writable = !e && !r.exceptionDetails; });
    if (!writable) text += `let ${name}${known.includes(name) ? '' : `=globalThis.${name}`};`;
  }
  return text;
}

function startRun(id, source) {
  if (watchdogHasPendingSigint()) resetSigint();  // a signal that came while idle
  lastId = id;
  const me = run = { id, outcome: null, failed: null, stopped: false, exit: null, shown: false, deadline: 0, silent: false, source, base: pendingWork(0) };
  installHandlers();
  gate(() => {
    let cell = { code: source };
    if (NEEDS_REWRITE.test(source)) cell = rewrite(source);
    const name = `\n//# sourceURL=cell-${id}.js`;
    me.silent = cell.silent;
    const before = cell.before === undefined ? '' : declareVars(cell.vars) + cell.before;
    if (before) evaluate(cell.strict + before + name);
    let compiling = true;                        // V8 reports syntax errors at once, all else through a promise
    evaluate(cell.code + name, (e, r) => {
      if (run !== me || me.outcome !== null) return;
      if (e) {           // the only known cause: nothing can ever settle what the cell awaits
        const lost = new Error('the cell awaits a promise that can never settle');
        lost.stack = `${lost.name = 'UnsettledAwait'}: ${lost.message}`;
        me.outcome = { error: true, value: lost };
        return;
      }
      const value = realValue(r.exceptionDetails ? r.exceptionDetails.exception : r.result);
      if (r.exceptionDetails) me.outcome = { error: true, value, where: compiling ? syntaxPlace(value, r.exceptionDetails, cell.code, id) : null };
      else if (isPromise(value)) {
        apply(then, value, [(v) => { me.outcome ??= { value: v }; }, (v) => { me.outcome ??= { error: true, value: v }; }]);
      } else me.outcome = { value };
    });
    compiling = false;
  });
}

function syntaxPlace(e, details, code, id) {
  if (!isNativeError(e) || e.name !== 'SyntaxError' || /\n +at /.test(e.stack)) return null;
  const text = code.split('\n')[details.lineNumber];
  return text === undefined ? null : { file: `cell-${id}.js`, line: details.lineNumber + 1, text, column: details.columnNumber };
}

// Runs outside the gate after every callback from the event loop: moves the active run towards its end.
let poll = null;
function afterTick() {
  const me = run;
  if (me === null) return;
  if (!me.stopped && watchdogHasPendingSigint()) { resetSigint(); me.stopped = true; }
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
  if (error) {
    me.failed = report(value, where);
    lastValues._error.set(value);
    return;
  }
  lastValues._.set(value);
  if (value === undefined || value instanceof timers.Timeout || value instanceof timers.Immediate) return;
  gate(() => {
    const silent = me.silent ?? (/\b(?:for|while|let|const|class)\b/.test(me.source) && lastIsSilent(parseCell(me.source)));
    if (silent) return;
    try { sendParts(me.id, true, partsOf(value)); } catch (e) { onUncaught(e); }
  });
}

const NOT_AWAITED = /Server|Signal|FSEvent|StatWatcher|MessagePort|Worker|TTY|^Timeout$/;
function pendingWork(limit) {                    // work that will end, one-shot timers, those of them due within limit
  const kinds = activeResources(), found = { work: 0, timers: 0, due: 0 };
  const server = kinds.some((k) => /Server/.test(k)), t = timerBinding.getLibuvNow();
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
  if (poll !== null) { clearTimeout(poll); poll = null; }
  post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
  process.exitCode = undefined;
  const usable = restoreFds();
  const head = { t: 'done', id: me.id, ok: true };
  if (me.exit !== null) {
    if (me.exit !== 0) { head.ok = false; head.error = { name: 'Exit', message: `process.exit(${me.exit})` }; head.interrupted = false; }
  } else if (me.stopped) {
    complain('Interrupted');
    head.ok = false;
    head.error = { name: 'Interrupted', message: 'interrupted' };
    head.interrupted = true;
  } else if (me.failed !== null) {
    head.ok = false;
    head.error = me.failed;
    head.interrupted = false;
  }
  send(head);
  if (!usable) reallyExit(71);                   // output is lost for good: a new kernel is better
}

// ---- what cells see ------------------------------------------------------------------------------------------------
const lastValues = {};
function installGlobals() {
  const cwd = process.cwd(), file = path.join(cwd, 'cell.js'), main = new Module(file, null);
  main.filename = file;
  main.paths = Module._nodeModulePaths(cwd);
  main.loaded = true;
  process.argv = [execPath, file];
  process.execArgv = [];
  process.mainModule = main;                     // require.main === module holds in a cell
  main._compile('module.exports = { require, load: (s, o) => import(s, o) };', file);
  const { require: req, load } = main.exports;
  main.exports = {};
  req.main = main;
  load.meta = { url: require('url').pathToFileURL(file).href, filename: file, dirname: cwd, main: true, resolve: (s) => {
    const found = req.resolve(s);
    return path.isAbsolute(found) ? require('url').pathToFileURL(found).href : found;
  } };
  const define = (name, value) => defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  for (const name of Module.builtinModules) {
    if (/[/_]|^module$/.test(name) || name === 'process' || name === 'console') continue;
    defineProperty(globalThis, name, {
      configurable: true, enumerable: false, get: () => { const m = req(name); define(name, m); return m; }, set: (v) => define(name, v),
    });
  }
  const own = { require: req, module: main, exports: main.exports, __filename: file, __dirname: cwd, display, [IMPORT]: load };
  for (const name of ownKeys(own)) define(name, own[name]);
  for (const name of ['_', '_error']) {
    let value;
    lastValues[name] = { set: (v) => { value = v; } };
    defineProperty(globalThis, name, { configurable: true, enumerable: false, get: () => value, set: (v) => define(name, v) });
  }
  process.exit = process.reallyExit = exit;
}

try {
  installOutput();
  installStackFilter();
  session.connect();
  defineProperty(globalThis, '__belljar_tmp__', { value: (v) => { received = v; }, configurable: true });
  post('Runtime.evaluate', { expression: '__belljar_tmp__', objectGroup: 'kernel' }, (e, r) => { receiver = r.result.objectId; });
  delete globalThis.__belljar_tmp__;
  installGlobals();
  installHandlers();
  pipe.open(WIRE);
  pipe.onread = onRead;
  installGates();
  pipe.readStart();
  send({ t: 'hello', pid, language: 'javascript', version: process.versions.node });
} catch (e) {
  const json = bytesOf(stringify({ t: 'fatal', message: String(e && e.stack) })), head = alloc(8);
  head.writeUInt32LE(4 + json.length, 0);
  head.writeUInt32LE(json.length, 4);
  writeSync(WIRE, concat([head, json]));
  reallyExit(70);
}
