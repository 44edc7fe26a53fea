//! A person at a context's browser, beside what the agent does there.

use std::time::Duration;

use belljar_proto::{Call, Gesture, MAX_PICTURE, Problem, Reply, Seen};

use crate::{Caller, Error, SandboxService, sandbox::shorten};

/// How every JPEG begins.
const JPEG: [u8; 3] = [0xff, 0xd8, 0xff];

impl SandboxService {
    /// The next picture after the one with that number, if there is one before `wait` is over. `dialog`: whether the
    /// asker knows of an open dialog. Looking starts no browser, waits for no call and keeps no context alive.
    pub async fn watch_browser(
        &self,
        caller: &Caller,
        context: &str,
        after: u64,
        dialog: bool,
        wait: Duration,
    ) -> Result<(Seen, Vec<u8>), Error> {
        let sandbox = self.find(caller, context)?.sandbox();
        let call = Call::Watch { after, dialog, wait_ms: wait.as_millis() as u64 };
        match sandbox.ask(call, &[], None, "The next call starts in a fresh one").await? {
            (Reply::Seen(mut seen), picture) => {
                for text in [&mut seen.url, &mut seen.title].into_iter().chain(&mut seen.dialog) {
                    shorten(text);
                    text.retain(|c| !c.is_control());
                }
                let fine = picture.is_empty() || picture.starts_with(&JPEG);
                if !fine || picture.len() > MAX_PICTURE {
                    return Err(Error::Internal("The sandbox sent something that is no picture".into()));
                }
                Ok((seen, picture))
            }
            (reply, _) => Err(refused(reply)),
        }
    }

    /// Moves mouse and keys in the context's browser, while the agent may do so too.
    pub async fn hand(
        &self,
        caller: &Caller,
        context: &str,
        gestures: Vec<Gesture>,
    ) -> Result<Result<(), Problem>, Error> {
        let context = self.find(caller, context)?;
        self.check_cpu(caller)?;
        context.touch();
        let loss = "The next call starts in a fresh one";
        match context.sandbox().ask(Call::Hand { gestures }, &[], None, loss).await? {
            (Reply::Ok, _) => Ok(Ok(())),
            (Reply::BrowseFailed { mut problem }, _) => {
                problem.texts().into_iter().for_each(shorten);
                Ok(Err(problem))
            }
            (reply, _) => Err(refused(reply)),
        }
    }
}

fn refused(reply: Reply) -> Error {
    match reply {
        Reply::Failed { mut message, .. } => {
            shorten(&mut message);
            Error::Internal(format!("The browser was not used: {message}"))
        }
        _ => Error::Internal("The sandbox gave a strange answer".into()),
    }
}
