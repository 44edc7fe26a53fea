//! Files of a context's sandbox. Every path is the guest's to resolve; none is looked at here.

use belljar_proto::{Call, Entry, MAX_FILE_CHUNK, Reply};

use crate::{Caller, Error, Listing, SandboxService, sandbox::Sandbox};

impl SandboxService {
    pub async fn write_file(
        &self,
        caller: &Caller,
        context: &str,
        path: &str,
        bytes: &[u8],
    ) -> Result<Entry, Error> {
        let context = self.find(caller, context)?;
        context.touch();
        let sandbox = self.living_or_told(&context).await?;
        let mut offset = 0;
        loop {
            let chunk = &bytes[offset..bytes.len().min(offset + MAX_FILE_CHUNK)];
            let call = Call::WriteFile { path: path.into(), offset: offset as u64 };
            sandbox.files(call, chunk, path).await?;
            offset += chunk.len();
            if offset == bytes.len() {
                break;
            }
        }
        stat(&sandbox, path).await
    }

    pub async fn stat_file(&self, caller: &Caller, context: &str, path: &str) -> Result<Entry, Error> {
        let context = self.find(caller, context)?;
        context.touch();
        stat(&*self.living_or_told(&context).await?, path).await
    }

    /// At most `limit` bytes from `offset` on, and the size of the whole file.
    pub async fn read_file(
        &self,
        caller: &Caller,
        context: &str,
        path: &str,
        offset: u64,
        limit: usize,
    ) -> Result<(Vec<u8>, u64), Error> {
        let context = self.find(caller, context)?;
        context.touch();
        let sandbox = self.living_or_told(&context).await?;
        let mut bytes = Vec::new();
        loop {
            let length = (limit - bytes.len()).min(MAX_FILE_CHUNK) as u32;
            let call = Call::ReadFile { path: path.into(), offset: offset + bytes.len() as u64, length };
            let (reply, chunk) = sandbox.files(call, &[], path).await?;
            let Reply::Data { size } = reply else { return Err(strange(&reply)) };
            let last = chunk.is_empty() || chunk.len() > length as usize;
            bytes.extend(chunk);
            if last || bytes.len() >= limit || offset + bytes.len() as u64 >= size {
                bytes.truncate(limit);
                return Ok((bytes, size));
            }
        }
    }

    pub async fn list_files(
        &self,
        caller: &Caller,
        context: &str,
        path: &str,
        recursive: bool,
    ) -> Result<Listing, Error> {
        let context = self.find(caller, context)?;
        context.touch();
        let call = Call::ListFiles { path: path.into(), recursive };
        let (reply, _) = self.living_or_told(&context).await?.files(call, &[], path).await?;
        let Reply::Listing { entries, truncated } = reply else { return Err(strange(&reply)) };
        Ok(Listing { entries, truncated })
    }
}

async fn stat(sandbox: &Sandbox, path: &str) -> Result<Entry, Error> {
    let (reply, _) = sandbox.files(Call::Stat { path: path.into(), digest: true }, &[], path).await?;
    let Reply::Stat(entry) = reply else { return Err(strange(&reply)) };
    Ok(entry)
}

fn strange(reply: &Reply) -> Error {
    Error::Internal(format!("the guest gave a strange answer: {reply:?}"))
}
