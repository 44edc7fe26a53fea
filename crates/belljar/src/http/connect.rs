//! How to connect the usual clients.

use std::net::SocketAddr;

/// Lines to paste, for a person who has just started the server.
pub(crate) fn instructions(addresses: &[SocketAddr], needs_token: bool, program: &str) -> String {
    let port = addresses.first().map_or(0, SocketAddr::port);
    let host = match addresses.iter().find(|address| !address.ip().is_unspecified()) {
        Some(address) if address.ip().is_loopback() => "localhost".to_owned(),
        Some(address) if address.is_ipv6() => format!("[{}]", address.ip()),
        Some(address) => address.ip().to_string(),
        None => "HOST".to_owned(),
    };
    let url = format!("http://{host}:{port}/mcp");
    let (flag, headers, args) = if needs_token {
        (
            " --header \"Authorization: Bearer $TOKEN\"",
            ", \"headers\": { \"Authorization\": \"Bearer …\" }",
            "\n\nA token is needed: `belljar token add NAME` makes one.",
        )
    } else {
        ("", "", "")
    };
    format!(
        "\nBelljar serves MCP at {url}, and shows what happens at http://{host}:{port}/\n\n  \
         Claude Code      claude mcp add --transport http belljar {url}{flag}\n  \
         Claude Desktop   \"mcpServers\": {{ \"belljar\": {{ \"command\": \"{program}\", \"args\": [\"mcp\"] }} }}, without this server\n  \
         Cursor           .cursor/mcp.json: {{ \"mcpServers\": {{ \"belljar\": {{ \"url\": \"{url}\"{headers} }} }} }}\n  \
         VS Code          .vscode/mcp.json: {{ \"servers\": {{ \"belljar\": {{ \"type\": \"http\", \"url\": \"{url}\"{headers} }} }} }}\n  \
         Zed              settings.json: \"context_servers\": {{ \"belljar\": {{ \"url\": \"{url}\"{headers} }} }}\n  \
         MCP inspector    npx @modelcontextprotocol/inspector --cli {url} --transport http --method tools/list\n  \
         curl             curl http://{host}:{port}/health{args}\n\n\
         Ctrl-C stops it and ends its sandboxes.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_as_agreed() {
        let local = instructions(
            &["127.0.0.1:8775".parse().unwrap(), "[::1]:8775".parse().unwrap()],
            false,
            "belljar",
        );
        let public = instructions(&["10.0.0.7:80".parse().unwrap()], true, "belljar");
        insta::assert_snapshot!(format!("{local}{public}"));
    }
}
