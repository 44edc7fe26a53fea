mkdir -p /srv/notes "$PAGE_DIR/bin"
echo 'Buy milk.' >/srv/notes/today.md
# What npx would download is there already, and a stranger's server is a public one.
cat >"$PAGE_DIR/bin/npx" <<NPX
#!/bin/sh
shift 2
exec node "$SERVERS/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js" "\$@"
NPX
chmod +x "$PAGE_DIR/bin/npx"
PATH=$PAGE_DIR/bin:$PATH
cp -r "$SERVERS" /srv/app
echo 'import("./node_modules/@modelcontextprotocol/server-everything/dist/index.js")' >/srv/app/server.js
