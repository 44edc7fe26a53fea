use belljar_sandbox::{Browse, ScrollTo};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, target};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Where to: top and bottom go all the way.
    #[schemars(extend("enum" = ["up", "down", "left", "right", "top", "bottom"]))]
    direction: Direction,
    /// How far, in heights (or widths) of what is visible. Default: 1.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 100, "default" = 1))]
    pages: Option<f64>,
    /// What to scroll: a ref from browser_snapshot such as "ref_1", or a CSS selector. Default: the page.
    selector: Option<String>,
}

/// The protocol crate's type knows nothing of schemas.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Up,
    Down,
    Left,
    Right,
    Top,
    Bottom,
}

impl Direction {
    fn to(self) -> ScrollTo {
        match self {
            Self::Up => ScrollTo::Up,
            Self::Down => ScrollTo::Down,
            Self::Left => ScrollTo::Left,
            Self::Right => ScrollTo::Right,
            Self::Top => ScrollTo::Top,
            Self::Bottom => ScrollTo::Bottom,
        }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_scroll";
    const TITLE: &'static str = "Scroll";
    const DESCRIPTION: &'static str = "Scroll the page or an element, as the mouse wheel does, so that \
        more of it is loaded or shown. browser_click and the other actions scroll to their element by \
        themselves. Returns where the page is then, and in `changes` what happened besides.";
    const ANNOTATIONS: Annotations = Annotations::MOVES;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Scroll {
            target: self.selector.map(target).transpose()?,
            to: self.direction.to(),
            pages: self.pages.unwrap_or(1.0),
        })
    }
}
