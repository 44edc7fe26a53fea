'use strict';
// Lets fetch take the way that HTTPS_PROXY and its like name, as other programs do. Node does so by itself from version
// 24 on (NODE_USE_ENV_PROXY). The environment is looked at with every call: it may change while a program runs.
if (!globalThis[Symbol.for('belljar.proxy')] && Number(process.versions.node.split('.')[0]) < 24) {
  Object.defineProperty(globalThis, Symbol.for('belljar.proxy'), { value: true });
  const net = require('net'), tls = require('tls'), fs = require('fs');
  const original = globalThis.fetch, { Response, URL, Request } = globalThis;
  const named = (name) => process.env[name.toLowerCase()] || process.env[name] || '';
  const authorities = () => {                      // read anew: NODE_EXTRA_CA_CERTS counts only at the start of a process
    const file = process.env.NODE_EXTRA_CA_CERTS;
    try { return file ? [...tls.rootCertificates, fs.readFileSync(file, 'utf8')] : undefined; } catch { return undefined; }
  };
  const excluded = (host) => named('NO_PROXY').split(/[\s,]+/).some((rule) => {
    const name = rule.replace(/^\*?\./, '').toLowerCase();
    return rule === '*' || (name && (host === name || host.endsWith('.' + name)));
  });

  // A connection through the proxy's CONNECT, for undici, which fetch is made of.
  function connect(proxy, { hostname, port, protocol, servername }, done) {
    const secure = protocol === 'https:', host = hostname.includes(':') ? `[${hostname.replace(/[[\]]/g, '')}]` : hostname;
    const target = `${host}:${port || (secure ? 443 : 80)}`;
    const socket = net.connect(Number(proxy.port) || 80, proxy.hostname.replace(/[[\]]/g, ''));
    let head = '';
    const fail = (error) => { socket.destroy(); done(error, null); };
    const onData = (bytes) => {
      head += bytes.toString('latin1');
      const end = head.indexOf('\r\n\r\n');
      if (end < 0) { if (head.length > 65536) fail(new Error('the proxy does not answer in HTTP')); return; }
      socket.off('data', onData).off('error', fail);
      const line = head.slice(0, head.indexOf('\r\n'));
      if (!/^HTTP\/1\.[01] 200 /.test(line)) { fail(new Error(`the proxy refused ${target}: ${line.slice(9)}`)); return; }
      if (!secure) { done(null, socket); return; }
      const options = { socket, ALPNProtocols: ['http/1.1'], ca: authorities() };
      if (!net.isIP(hostname)) options.servername = servername || hostname;
      const inner = tls.connect(options, () => { inner.off('error', fail); done(null, inner); });
      inner.once('error', fail);
    };
    socket.once('error', fail).on('data', onData);
    socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
  }

  const agents = new Map();
  function dispatcher(address) {
    let url;
    try {
      url = new URL(address);
      const host = url.hostname.replace(/[[\]]/g, '');
      const name = url.protocol === 'https:' ? 'HTTPS_PROXY' : 'HTTP_PROXY', proxy = named(name);
      if (!proxy || !/^https?:$/.test(url.protocol) || excluded(host)) return undefined;
      const key = proxy + ' ' + (process.env.NODE_EXTRA_CA_CERTS || '');
      if (!agents.has(key)) {
        const through = new URL(proxy);
        new Response();                            // loads undici, and with it the class of its agents
        const Agent = globalThis[Symbol.for('undici.globalDispatcher.1')].constructor;
        agents.set(key, new Agent({ connect: (options, done) => connect(through, options, done) }));
      }
      return agents.get(key);
    } catch { return undefined; }
  }

  const fetch = function fetch(input, init) {
    const through = init?.dispatcher ?? dispatcher(input instanceof Request ? input.url : String(input));
    return through === undefined ? original.call(this, input, init) : original.call(this, input, { ...init, dispatcher: through });
  };
  Object.defineProperty(globalThis, 'fetch', { value: fetch, writable: true, configurable: true, enumerable: true });
}
