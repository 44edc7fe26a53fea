//! Names of keys, and what a browser is told when one is pressed.

use serde_json::{Value, json};

const ALT: u8 = 1;
const CONTROL: u8 = 2;
const META: u8 = 4;
const SHIFT: u8 = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stroke {
    pub(crate) modifiers: u8,
    key: String,
    code: String,
    /// Windows' number of the key, which pages know as `keyCode`.
    number: u32,
    text: Option<String>,
}

/// Name, code, number and text of keys that are not characters.
const NAMED: [(&str, &str, u32, Option<&str>); 27] = [
    ("Enter", "Enter", 13, Some("\r")),
    ("Tab", "Tab", 9, None),
    ("Escape", "Escape", 27, None),
    ("Backspace", "Backspace", 8, None),
    ("Delete", "Delete", 46, None),
    ("Insert", "Insert", 45, None),
    ("Home", "Home", 36, None),
    ("End", "End", 35, None),
    ("PageUp", "PageUp", 33, None),
    ("PageDown", "PageDown", 34, None),
    ("ArrowLeft", "ArrowLeft", 37, None),
    ("ArrowUp", "ArrowUp", 38, None),
    ("ArrowRight", "ArrowRight", 39, None),
    ("ArrowDown", "ArrowDown", 40, None),
    ("F1", "F1", 112, None),
    ("F2", "F2", 113, None),
    ("F3", "F3", 114, None),
    ("F4", "F4", 115, None),
    ("F5", "F5", 116, None),
    ("F6", "F6", 117, None),
    ("F7", "F7", 118, None),
    ("F8", "F8", 119, None),
    ("F9", "F9", 120, None),
    ("F10", "F10", 121, None),
    ("F11", "F11", 122, None),
    ("F12", "F12", 123, None),
    ("ContextMenu", "ContextMenu", 93, None),
];

const ALIASES: [(&str, &str); 14] = [
    ("return", "Enter"),
    ("esc", "Escape"),
    ("del", "Delete"),
    ("ins", "Insert"),
    ("left", "ArrowLeft"),
    ("right", "ArrowRight"),
    ("up", "ArrowUp"),
    ("down", "ArrowDown"),
    ("pgup", "PageUp"),
    ("pgdn", "PageDown"),
    ("pgdown", "PageDown"),
    ("space", " "),
    ("spacebar", " "),
    ("plus", "+"),
];

/// Characters of an American keyboard that need no letter or digit key: plain, shifted, code, number.
const MARKS: [(char, char, &str, u32); 11] = [
    ('`', '~', "Backquote", 192),
    ('-', '_', "Minus", 189),
    ('=', '+', "Equal", 187),
    ('[', '{', "BracketLeft", 219),
    (']', '}', "BracketRight", 221),
    ('\\', '|', "Backslash", 220),
    (';', ':', "Semicolon", 186),
    ('\'', '"', "Quote", 222),
    (',', '<', "Comma", 188),
    ('.', '>', "Period", 190),
    ('/', '?', "Slash", 191),
];

impl Stroke {
    /// `Enter`, `a`, `Control+Shift+K`, `ctrl+plus`.
    pub(crate) fn parse(given: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "unknown key {given:?}; use a character, or a name such as Enter, Tab, Escape, Backspace, Delete, ArrowDown, \
                 PageDown, Home, F5, with Control+, Shift+, Alt+ or Meta+ in front"
            )
        };
        if given.len() > 100 {
            return Err(format!("the name of a key has {} bytes", given.len()));
        }
        let mut modifiers = 0;
        let mut rest = given;
        // The last part may itself be a plus.
        while let Some((name, after)) =
            rest.split_once('+').filter(|(name, after)| !name.is_empty() && !after.is_empty())
        {
            modifiers |= modifier(name).ok_or_else(unknown)?;
            rest = after;
        }
        if let Some(alone) = modifier(rest) {
            let (key, code, number) = match alone {
                ALT => ("Alt", "AltLeft", 18),
                CONTROL => ("Control", "ControlLeft", 17),
                META => ("Meta", "MetaLeft", 91),
                _ => ("Shift", "ShiftLeft", 16),
            };
            let (key, code) = (key.into(), code.into());
            return Ok(Self { modifiers: modifiers | alone, key, code, number, text: None });
        }
        let lower = rest.to_ascii_lowercase();
        let name = ALIASES.iter().find(|(alias, _)| *alias == lower).map_or(rest, |(_, name)| name);
        if let Some((key, code, number, text)) = NAMED.iter().find(|(key, ..)| key.eq_ignore_ascii_case(name))
        {
            let text = text.map(str::to_owned).filter(|_| modifiers & !SHIFT == 0);
            return Ok(Self { modifiers, key: (*key).into(), code: (*code).into(), number: *number, text });
        }
        let mut characters = name.chars();
        match (characters.next(), characters.next()) {
            (Some(c), None) if !c.is_control() => Ok(Self::character(c, modifiers)),
            _ => Err(unknown()),
        }
    }

    /// The key that writes this character.
    pub(crate) fn character(c: char, mut modifiers: u8) -> Self {
        let mut key = c;
        let (code, number) = match c {
            'a'..='z' | 'A'..='Z' => {
                let upper = c.to_ascii_uppercase();
                if c.is_ascii_uppercase() {
                    modifiers |= SHIFT;
                } else if modifiers & SHIFT != 0 {
                    key = upper;
                }
                (format!("Key{upper}"), upper as u32)
            }
            '0'..='9' => (format!("Digit{c}"), c as u32),
            ' ' => ("Space".into(), 32),
            _ => {
                let mark = MARKS.iter().find(|(plain, shifted, ..)| *plain == c || *shifted == c);
                if mark.is_some_and(|(_, shifted, ..)| *shifted == c) {
                    modifiers |= SHIFT;
                }
                mark.map_or((String::new(), 0), |(.., code, number)| ((*code).into(), *number))
            }
        };
        let text = (modifiers & !SHIFT == 0).then(|| key.to_string());
        Self { modifiers, key: key.to_string(), code, number, text }
    }

    /// Parameters of `Input.dispatchKeyEvent`, for going down and for coming up.
    pub(crate) fn events(&self) -> [Value; 2] {
        let event = |kind: &str| {
            json!({
                "type": kind, "modifiers": self.modifiers, "key": self.key, "code": self.code,
                "windowsVirtualKeyCode": self.number, "nativeVirtualKeyCode": self.number,
            })
        };
        let mut down = event(if self.text.is_some() { "keyDown" } else { "rawKeyDown" });
        if let Some(text) = &self.text {
            down["text"] = text.as_str().into();
            down["unmodifiedText"] = text.as_str().into();
        }
        if let Some(command) = self.command() {
            down["commands"] = json!([command]);
        }
        [down, event("keyUp")]
    }

    /// What editors do at a shortcut. A browser without a window system knows none by itself.
    fn command(&self) -> Option<&'static str> {
        if self.modifiers & !SHIFT != CONTROL {
            return None;
        }
        Some(match (self.key.to_ascii_lowercase().as_str(), self.modifiers & SHIFT != 0) {
            ("a", false) => "selectAll",
            ("c", false) => "copy",
            ("x", false) => "cut",
            ("v", false) => "paste",
            ("z", false) => "undo",
            ("z", true) | ("y", false) => "redo",
            _ => return None,
        })
    }
}

/// Pages that listen to keys and not to input hear the last one, when all is there.
pub(crate) fn last_key(text: &str) -> Option<char> {
    text.chars().next_back().filter(char::is_ascii_graphic)
}

fn modifier(name: &str) -> Option<u8> {
    Some(match name.to_ascii_lowercase().as_str() {
        "alt" | "option" => ALT,
        "control" | "ctrl" | "controlormeta" => CONTROL,
        "meta" | "cmd" | "command" | "super" => META,
        "shift" => SHIFT,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stroke(name: &str) -> (u8, String, String, u32, Option<String>) {
        let s = Stroke::parse(name).unwrap();
        (s.modifiers, s.key, s.code, s.number, s.text)
    }

    #[test]
    fn keys_are_known_by_name() {
        let some = |text: &str| Some(text.to_string());
        assert_eq!(stroke("Enter"), (0, "Enter".into(), "Enter".into(), 13, some("\r")));
        assert_eq!(stroke("esc"), (0, "Escape".into(), "Escape".into(), 27, None));
        assert_eq!(stroke("a"), (0, "a".into(), "KeyA".into(), 65, some("a")));
        assert_eq!(stroke("A"), (SHIFT, "A".into(), "KeyA".into(), 65, some("A")));
        assert_eq!(stroke("Shift+a"), (SHIFT, "A".into(), "KeyA".into(), 65, some("A")));
        assert_eq!(stroke("Control+Shift+k"), (CONTROL | SHIFT, "K".into(), "KeyK".into(), 75, None));
        assert_eq!(stroke("ctrl++"), (CONTROL | SHIFT, "+".into(), "Equal".into(), 187, None));
        assert_eq!(stroke("+"), (SHIFT, "+".into(), "Equal".into(), 187, some("+")));
        assert_eq!(stroke("?"), (SHIFT, "?".into(), "Slash".into(), 191, some("?")));
        assert_eq!(stroke("é"), (0, "é".into(), String::new(), 0, some("é")));
        assert_eq!(stroke("space"), (0, " ".into(), "Space".into(), 32, some(" ")));
        assert_eq!(stroke("alt+f4"), (ALT, "F4".into(), "F4".into(), 115, None));
        assert_eq!(stroke("Shift"), (SHIFT, "Shift".into(), "ShiftLeft".into(), 16, None));
        for bad in ["", "Entr", "Hyper+a", "ab", "\n", "Control+"] {
            assert!(Stroke::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn shortcuts_of_editors_do_what_they_do() {
        let command = |name| Stroke::parse(name).unwrap().events()[0]["commands"].clone();
        assert_eq!(command("Control+a"), json!(["selectAll"]));
        assert_eq!(command("Control+Shift+z"), json!(["redo"]));
        assert_eq!(command("a"), Value::Null);
        assert_eq!(command("Control+Alt+a"), Value::Null);
    }
}
