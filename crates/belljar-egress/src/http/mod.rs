//! HTTP/1, read so strictly that no two programs can read it differently.

mod body;
mod head;
mod reader;

pub(crate) use body::{Body, Framing, last_chunk, write_chunk};
pub(crate) use head::{Headers, Request, Response};
pub(crate) use reader::Reader;

#[cfg(test)]
mod tests;
