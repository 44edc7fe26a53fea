//! A person at the sandbox's browser: what they see, and what their hands do.

use serde::{Deserialize, Serialize};

use crate::MouseButton;

/// The longest that one look waits for something new.
pub const MAX_WATCH_MS: u64 = 5_000;
/// The most gestures that come at once.
pub const MAX_GESTURES: usize = 200;

/// What the active tab shows. The picture, a JPEG, is the reply's body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// There is a browser.
    pub open: bool,
    /// Of the picture; the same one is not sent twice. Later ones have larger numbers.
    pub number: u64,
    pub url: String,
    pub title: String,
    /// A dialog that has to be answered before anything else happens.
    pub dialog: Option<String>,
}

/// One movement of a hand. Places are in pixels of the picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Gesture {
    Move {
        x: f64,
        y: f64,
        /// Held down meanwhile.
        button: Option<MouseButton>,
    },
    Down(Press),
    Up(Press),
    Wheel {
        x: f64,
        y: f64,
        dx: f64,
        dy: f64,
    },
    /// Goes down and up again: `a`, `Enter`, `Control+Shift+K`.
    Key {
        key: String,
    },
    /// What no single key writes.
    Text {
        text: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Press {
    pub x: f64,
    pub y: f64,
    #[serde(default)]
    pub button: MouseButton,
    /// 2 for the second press of a double click.
    pub clicks: u8,
    /// 1 Alt, 2 Control, 4 Meta, 8 Shift, added up.
    #[serde(default)]
    pub modifiers: u8,
}
