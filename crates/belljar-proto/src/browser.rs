//! What can be done in a sandbox's browser, and what comes of it.

use serde::{Deserialize, Serialize};

/// The most bytes of a picture.
pub const MAX_PICTURE: usize = 12 << 20;
/// The most bytes of text or of element lines in one answer: with all else, and escaped, they fit into a header.
pub const MAX_BROWSED_TEXT: usize = 160 << 10;
/// The most tabs that a browser has.
pub const MAX_TABS: usize = 50;

/// One thing to do in the browser. A `target` is `ref_N` from a snapshot or a CSS selector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Browse {
    Goto {
        url: String,
    },
    Back,
    Forward,
    Reload,
    Snapshot {
        /// Characters of text; `None` for the usual number.
        max_text: Option<u32>,
        /// Only what has to do with this.
        find: Option<String>,
        /// Only what differs from the last snapshot.
        changes: bool,
    },
    Click {
        target: String,
        double: bool,
        button: MouseButton,
    },
    Type {
        target: String,
        text: String,
        /// Press Enter afterwards.
        submit: bool,
        /// Keep what is there.
        append: bool,
    },
    Press {
        /// `Enter`, `a`, `Control+Shift+K`.
        key: String,
        target: Option<String>,
    },
    Select {
        target: String,
        /// Labels or values of options.
        values: Vec<String>,
    },
    Hover {
        target: String,
    },
    Scroll {
        target: Option<String>,
        to: ScrollTo,
        pages: f64,
    },
    FillForm {
        /// Target and value.
        fields: Vec<(String, String)>,
    },
    Upload {
        target: String,
        paths: Vec<String>,
    },
    /// Without any of these: lists them.
    Tabs {
        select: Option<u32>,
        close: Option<u32>,
        /// Address of a new one.
        open: Option<String>,
    },
    WaitFor {
        text: Option<String>,
        target: Option<String>,
        /// A part of the address.
        url: Option<String>,
        idle: bool,
    },
    Dialog {
        accept: bool,
        /// What a prompt is answered with.
        text: Option<String>,
    },
    /// Runs JavaScript in the page.
    Evaluate {
        code: String,
    },
    Console {
        limit: u32,
    },
    Network {
        limit: u32,
    },
    /// The picture is the reply's body.
    Screenshot {
        target: Option<String>,
        full_page: bool,
        /// Show the refs of elements.
        marks: bool,
    },
    /// Writes the page into a file of the sandbox.
    Pdf {
        path: String,
    },
    /// The page's article as Markdown.
    Extract,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MouseButton {
    #[default]
    Left,
    Right,
    Middle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrollTo {
    Up,
    Down,
    Left,
    Right,
    Top,
    Bottom,
}

/// What came of it. Strings of a page hold no control characters; in `text` and `elements`, line breaks alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Browsed {
    pub url: String,
    pub title: String,
    /// What happened besides, in words: where it went, dialogs, tabs, downloads.
    pub changes: Vec<String>,
    /// Of a snapshot, an extract, an evaluation, the console or the network.
    pub text: Option<String>,
    /// Of a snapshot: lines such as `[ref_1] button "Sign in"`.
    pub elements: Option<String>,
    pub tabs: Vec<Tab>,
    /// How many elements a CSS selector matched, when there were several.
    pub matched: Option<u32>,
    /// What a snapshot left out.
    pub cut: Option<String>,
    /// Of the body.
    pub mime: Option<String>,
    /// Of a file that was written.
    pub path: Option<String>,
    pub size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tab {
    /// Counted from 1, never given twice.
    pub index: u32,
    pub url: String,
    pub title: String,
    pub active: bool,
}

/// Why it was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// There is none, or it does not start.
    NoBrowser {
        message: String,
    },
    NotFound {
        target: String,
    },
    /// The element of this ref is gone. The candidates look like it.
    Stale {
        target: String,
        candidates: Vec<String>,
    },
    BadSelector {
        target: String,
        message: String,
    },
    Hidden {
        target: String,
    },
    Disabled {
        target: String,
    },
    Covered {
        target: String,
        by: String,
    },
    Moving {
        target: String,
    },
    Navigation {
        url: String,
        message: String,
    },
    NotAllowed {
        url: String,
        message: String,
    },
    /// A dialog is open and has to be answered first.
    Dialog {
        text: String,
    },
    /// The page or the whole browser crashed.
    Crashed {
        message: String,
    },
    TimedOut {
        message: String,
    },
    Invalid {
        message: String,
    },
}

impl Problem {
    /// Every text in it, to be bounded by whoever receives it.
    pub fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::NoBrowser { message }
            | Self::Crashed { message }
            | Self::TimedOut { message }
            | Self::Invalid { message } => vec![message],
            Self::NotFound { target }
            | Self::Hidden { target }
            | Self::Disabled { target }
            | Self::Moving { target } => vec![target],
            Self::Stale { target, candidates } => {
                candidates.truncate(10);
                std::iter::once(target).chain(candidates).collect()
            }
            Self::BadSelector { target, message } => vec![target, message],
            Self::Covered { target, by } => vec![target, by],
            Self::Navigation { url, message } | Self::NotAllowed { url, message } => vec![url, message],
            Self::Dialog { text } => vec![text],
        }
    }
}
