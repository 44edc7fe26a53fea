//! Everything that is shown to a model, or taken from one, has a named cap.

/// Images in one result; the others are described.
pub const MAX_IMAGES: usize = 10;
/// Bytes of all images in one result, before base64.
pub const MAX_IMAGE_BYTES: usize = 5_000_000;
/// Rich outputs described in one result.
pub const MAX_OUTPUTS: usize = 50;
/// Bytes of one rich text (HTML, JSON, the value of the last expression).
pub const MAX_RICH_TEXT: usize = 20_000;
/// Bytes of all rich texts of one result together.
pub const MAX_RICH_TEXT_IN_ALL: usize = 100_000;
/// Bytes of an exception's message.
pub const MAX_ERROR_MESSAGE: usize = 4_000;
/// Bytes of a program.
pub const MAX_CODE: usize = 4 << 20;
/// Characters of a context's description.
pub const MAX_DESCRIPTION: usize = 1_000;
/// Decoded bytes of one upload.
pub const MAX_UPLOAD: usize = 10 << 20;
/// Bytes of a file that a result carries; a larger one is a resource link.
pub const MAX_DOWNLOAD: usize = 1_000_000;
/// Bytes of a file that `file_read` shows.
pub const MAX_FILE_READ: usize = 100_000;
/// Bytes of an address, a text or a program for the browser, and of everything in one form: they must fit a message's
/// header even if every byte is escaped.
pub const MAX_BROWSER_INPUT: usize = 128 << 10;
/// Bytes of a selector.
pub const MAX_SELECTOR: usize = 4_000;
/// Bytes of the name of a key.
pub const MAX_KEY: usize = 100;
/// Fields of a form, values of a choice or files of an upload in one call.
pub const MAX_ITEMS: usize = 100;
/// Lines of a page's console or of its requests that one result lists.
pub const MAX_LOG_LINES: u32 = 500;
/// The same when the call does not say.
pub const DEFAULT_LOG_LINES: u32 = 50;
/// Characters of one value in the line that sums up a result.
pub const MAX_SUMMARY: usize = 200;
/// Characters of the line that tells of a failure, and of its hint.
pub const MAX_FAILURE: usize = 1_000;
/// Candidates that a hint names for an element that is gone.
pub const MAX_CANDIDATES: usize = 5;
/// Rules of the operator's that a description names.
pub const MAX_RULES_SHOWN: usize = 30;
/// Entries of one listing that a result carries.
pub const MAX_ENTRIES: usize = 1_000;
/// Characters of an offending value that an error message repeats.
pub const MAX_QUOTED: usize = 60;
