// The least that a stateful JavaScript interpreter can do: repl.py for Node.
//
//     node repl.cjs            on standard input and output
//     node repl.cjs SOCKET     on a socket of that name, for one client

"use strict";

const net = require("node:net");
const util = require("node:util");
const vm = require("node:vm");

function run(code) {
  try {
    const value = vm.runInThisContext(code);
    return { success: true, stderr: "", result: value === undefined ? null : util.inspect(value) };
  } catch (error) {
    return { success: false, stderr: String(error?.stack ?? error), result: null };
  }
}

function serve(input, output) {
  let rest = "";
  input.setEncoding("utf8");
  input.on("data", (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const { id, code } = JSON.parse(line);
      output.write(`${JSON.stringify({ id, ...run(code) })}\n`);
    }
  });
  input.on("end", () => process.exit());
}

if (process.argv[2]) {
  net.createServer((socket) => serve(socket, socket)).listen(process.argv[2]);
} else {
  serve(process.stdin, process.stdout);
}
