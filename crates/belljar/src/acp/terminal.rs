//! A terminal of the editor's that shows what runs in the sandbox. The editor runs this very program there, as the
//! hidden command `__show`: it connects to the agent, prints what comes, and exits when there is no more. It runs nothing.

use std::{
    future::Future,
    io::{self, Read, Write},
    os::unix::{fs::DirBuilderExt, net::UnixStream as StdStream},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use agent_client_protocol::v1::schema::{
    CreateTerminalRequest, ReleaseTerminalRequest, SessionUpdate, Terminal, TerminalId, ToolCallContent,
    ToolCallUpdate, ToolCallUpdateFields, WaitForTerminalExitRequest,
};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    sync::mpsc::UnboundedReceiver,
};

use super::tools::Working;

/// The hidden first argument.
const NAME: &str = "__show";
/// How long the editor may take to start the program.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to see the end.
const FAREWELL: Duration = Duration::from_secs(5);
/// Bytes that a terminal shows of one command.
pub(crate) const BUDGET: usize = 4 << 20;
/// A zero instead of a length: there is no more.
const END: u32 = 0;

pub(crate) struct Shown {
    id: TerminalId,
    stream: UnixStream,
}

/// The socket's own directory, removed with it.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        // What is left over is empty, and its directory only ours.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Shown {
    pub(crate) async fn open(cx: &Working<'_>, command: &str) -> Result<Self, String> {
        let place = place().map_err(|e| format!("no place for a socket: {e}"))?;
        let socket = place.0.join("s");
        let listener = UnixListener::bind(&socket).map_err(|e| format!("no socket: {e}"))?;
        let program = std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
        let session = cx.session;
        let request = CreateTerminalRequest::new(session.id.clone(), program.to_string_lossy().into_owned())
            // The command is for the reader of the terminal's title alone.
            .args(vec![NAME.to_owned(), socket.to_string_lossy().into_owned(), super::text::title(command)])
            .cwd(session.project.root().to_owned())
            .output_byte_limit(BUDGET as u64);
        let created = tokio::select! {
            created = session.client.ask(request) => created.map_err(|e| e.message)?,
            () = cx.cancel.cancelled() => return Err("cancelled".to_owned()),
        };
        let id = created.terminal_id;
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(PATIENCE, listener.accept()) => accepted.ok().and_then(Result::ok),
            () = cx.cancel.cancelled() => None,
        };
        match accepted {
            Some((stream, _)) => {
                let content = vec![ToolCallContent::Terminal(Terminal::new(id.clone()))];
                let fields = ToolCallUpdateFields::new().content(content);
                session.show(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(cx.call.clone(), fields)));
                Ok(Self { id, stream })
            }
            _ => {
                let _ = session.client.ask(ReleaseTerminalRequest::new(session.id.clone(), id)).await;
                Err("the editor's terminal did not begin".to_owned())
            }
        }
    }

    pub(crate) fn content(&self) -> ToolCallContent {
        ToolCallContent::Terminal(Terminal::new(self.id.clone()))
    }

    pub(crate) async fn during<T>(
        self,
        cx: &Working<'_>,
        work: impl Future<Output = T>,
        mut output: UnboundedReceiver<Vec<u8>>,
    ) -> T {
        let Self { id, mut stream } = self;
        let mut work = std::pin::pin!(work);
        let mut filter = Filter::default();
        let mut budget = BUDGET;
        let mut closed = false;
        let done = loop {
            tokio::select! {
                biased;
                Some(bytes) = output.recv() => {
                    let text = filter.pass(&bytes);
                    if closed || budget == 0 || text.is_empty() {
                        continue;
                    }
                    budget = budget.saturating_sub(text.len());
                    if frame(&mut stream, text.as_bytes()).await.is_err() {
                        // The user closed the terminal: the command is stopped, as in any other.
                        closed = true;
                        cx.cancel.cancel();
                    }
                }
                done = &mut work => break done,
            }
        };
        while let Ok(bytes) = output.try_recv() {
            let text = filter.pass(&bytes);
            if budget > 0 && !text.is_empty() {
                budget = budget.saturating_sub(text.len());
                let _ = frame(&mut stream, text.as_bytes()).await;
            }
        }
        let _ = stream.write_all(&END.to_be_bytes()).await;
        let session = cx.session;
        let farewell = async {
            let exited = WaitForTerminalExitRequest::new(session.id.clone(), id.clone());
            let _ = session.client.ask(exited).await;
            // It goes on showing what it showed.
            let _ = session.client.ask(ReleaseTerminalRequest::new(session.id.clone(), id.clone())).await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        done
    }
}

async fn frame(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    for part in bytes.chunks(64 << 10) {
        stream.write_all(&(part.len() as u32).to_be_bytes()).await?;
        stream.write_all(part).await?;
    }
    Ok(())
}

/// Short enough for a socket's name, and nobody else's.
fn place() -> io::Result<Place> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let top = runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir);
    let path = top.join(format!("belljar-{}", uuid::Uuid::new_v4().simple()));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(Place(path))
}

pub(crate) fn requested() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == NAME)
}

/// In the editor's terminal: prints until the agent says that it is over, or is gone.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let socket = std::env::args_os().nth(2).unwrap_or_default();
    let mut stream = StdStream::connect(Path::new(&socket))?;
    let mut out = io::stdout().lock();
    loop {
        let mut length = [0; 4];
        if stream.read_exact(&mut length).is_err() || u32::from_be_bytes(length) == END {
            return Ok(ExitCode::SUCCESS);
        }
        let mut part = (&mut stream).take(u64::from(u32::from_be_bytes(length)));
        io::copy(&mut part, &mut out)?;
        out.flush()?;
    }
}

/// Lets text and colours through to a terminal, and nothing that could reach beyond it.
#[derive(Default)]
pub(crate) struct Filter {
    /// Bytes that may be the beginning of something.
    held: Vec<u8>,
}

/// A sequence that is longer is none.
const MAX_SEQUENCE: usize = 4096;

impl Filter {
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let whole = match std::str::from_utf8(&held) {
            Err(e) if e.error_len().is_none() => e.valid_up_to(),
            _ => held.len(),
        };
        let text = String::from_utf8_lossy(&held[..whole]).into_owned();
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(character) = rest.chars().next() {
            if character == '\u{1b}' {
                match sequence(rest) {
                    Some((length, kept)) => {
                        out.push_str(if kept { &rest[..length] } else { "" });
                        rest = &rest[length..];
                        continue;
                    }
                    None if rest.len() <= MAX_SEQUENCE => {
                        self.held.extend_from_slice(rest.as_bytes());
                        break;
                    }
                    None => {}
                }
            } else if !character.is_control() || matches!(character, '\n' | '\r' | '\t' | '\u{8}') {
                out.push(character);
            }
            rest = &rest[character.len_utf8()..];
        }
        self.held.extend_from_slice(&held[whole..]);
        out
    }
}

/// How long an escape sequence is, and whether it only colours or erases. `None` when it is not complete.
fn sequence(text: &str) -> Option<(usize, bool)> {
    let mut characters = text.char_indices().skip(1);
    match characters.next()? {
        (_, '[') => {
            let end = characters.find(|(_, c)| ('\u{40}'..='\u{7e}').contains(c))?;
            let plain = text[2..end.0].chars().all(|c| c.is_ascii_digit() || c == ';' || c == ':');
            Some((end.0 + 1, plain && matches!(end.1, 'm' | 'K')))
        }
        (_, ']' | 'P' | 'X' | '^' | '_') => {
            while let Some((at, character)) = characters.next() {
                match character {
                    '\u{7}' => return Some((at + 1, false)),
                    '\u{1b}' => return characters.next().map(|(at, c)| (at + c.len_utf8(), false)),
                    _ => {}
                }
            }
            None
        }
        (at, other) => Some((at + other.len_utf8(), false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(parts: &[&[u8]]) -> String {
        let mut filter = Filter::default();
        parts.iter().map(|part| filter.pass(part)).collect()
    }

    #[test]
    fn colours_pass_and_the_rest_does_not() {
        assert_eq!(passed(&[b"\x1b[1;32mok\x1b[0m\n"]), "\u{1b}[1;32mok\u{1b}[0m\n");
        assert_eq!(passed(&[b"a\x1b[2Jb\x1b]0;t\x07c\x1b]52;c;AA\x1b\\d\x1bce\x07f"]), "abcdef");
        assert_eq!(passed(&[b"\x1b[", b"31", b"mred"]), "\u{1b}[31mred");
        assert_eq!(passed(&["é".as_bytes()[..1].as_ref(), &"é".as_bytes()[1..]]), "é");
        assert_eq!(passed(&[b"\xff\xfe"]), "\u{fffd}\u{fffd}");
    }

    /// Printable characters, the few that move within a line, and sequences that colour or erase; read here without the
    /// filter's own eyes.
    fn is_harmless(text: &str) -> bool {
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            rest = &rest[character.len_utf8()..];
            if character == '\u{1b}' {
                let Some(inner) = rest.strip_prefix('[') else { return false };
                rest = inner.trim_start_matches(|c: char| c.is_ascii_digit() || ";:".contains(c));
                let Some(after) = rest.strip_prefix(['m', 'K']) else { return false };
                rest = after;
            } else if character.is_control() && !"\n\r\t\u{8}".contains(character) {
                return false;
            }
        }
        true
    }

    #[test]
    fn fuzz_terminal() {
        // The first byte says in pieces of which size the rest arrives.
        let seeds: [&[u8]; 6] = [
            b"\x40plain \xc3\xa9\r\n\tand \x1b[1;32mgreen\x1b[0m\x1b[K\n",
            b"\x01\x1b[38:2:1:2:3mcolon\x1b[m\x1b[2J\x1b[?1049h\x1b[>c",
            b"\x03\x1b]0;title\x07a\x1b]52;c;QQ==\x1b\\b\x1b]8;;http://x\x1b\\link",
            b"\x02\x1bP+q544e\x1b\\\x1b_G\x1b\\\x1b^x\x07\x1bXy\x07\x1bc\x1b7\x1b#8",
            b"\x05\xc2\x9b2J\xc2\x9d0;t\x07\xff\xe2\x80\x1b[31",
            b"\x07\x1b[1\x1b[31m\x1b\x1b[0m\x00\x08\x0b\x7f",
        ];
        belljar_fuzz::fuzz("terminal", &seeds, |input| {
            let Some((&size, bytes)) = input.split_first() else { return 0 };
            let mut filter = Filter::default();
            let mut text = String::new();
            for part in bytes.chunks(usize::from(size).max(1)) {
                text.push_str(&filter.pass(part));
                assert!(filter.held.len() <= MAX_SEQUENCE + 4, "{}", filter.held.len());
            }
            assert!(is_harmless(&text), "{text:?}");
            // What is replaced may be cut otherwise in other pieces, and what is too long is given up sooner or later.
            if std::str::from_utf8(bytes).is_ok() && bytes.len() <= MAX_SEQUENCE {
                assert_eq!(text, passed(&[bytes]));
            }
            let kept = text.matches('\u{1b}').count();
            belljar_fuzz::mark((
                kept.min(4),
                filter.held.first(),
                filter.held.len().min(3),
                text.len().min(3),
            ))
        });
    }

    proptest::proptest! {
        #[test]
        fn nothing_else_passes(parts: Vec<Vec<u8>>) {
            let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
            let mut rest = passed(&parts);
            while let Some(at) = rest.find('\u{1b}') {
                let (length, kept) = sequence(&rest[at..]).unwrap();
                proptest::prop_assert!(kept);
                rest.replace_range(at..at + length, "");
            }
            let moves = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{8}');
            proptest::prop_assert!(!rest.chars().any(moves));
        }

        #[test]
        fn what_is_held_is_bounded(parts: Vec<Vec<u8>>) {
            let mut filter = Filter::default();
            for part in &parts {
                filter.pass(part);
                proptest::prop_assert!(filter.held.len() <= MAX_SEQUENCE + 4);
            }
        }
    }
}
