use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, count, target};
use crate::{Annotations, MAX_BROWSER_INPUT, text};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The fields, in the order in which they are filled in.
    fields: Vec<Field>,
}

#[derive(Deserialize, JsonSchema)]
struct Field {
    /// The field: a ref from browser_snapshot such as "ref_1", or a CSS selector.
    selector: String,
    /// What it shall hold.
    value: String,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_fill_form";
    const TITLE: &'static str = "Fill in a form";
    const DESCRIPTION: &'static str = "Fill in several fields of a form at once: text fields by their \
        text, lists by the label of an option, checkboxes and radio buttons by \"true\" or \"false\". \
        The form is not sent; click its button or press Enter then. Stops at the first field that cannot \
        be filled in and says which.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let mut room = MAX_BROWSER_INPUT;
        let mut fields = Vec::new();
        for field in self.fields {
            let target = target(field.selector)?;
            room = room.checked_sub(target.len() + field.value.len()).ok_or_else(|| {
                Failure::invalid(
                    format!(
                        "the fields have more than {} bytes together",
                        text::grouped(MAX_BROWSER_INPUT as u64)
                    ),
                    "fill in the form in several calls",
                )
            })?;
            fields.push((target, field.value));
        }
        count("fields", fields.len())?;
        Ok(Browse::FillForm { fields })
    }
}
