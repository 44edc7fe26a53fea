//! What a tab gives besides snapshots: values, logs, pictures, documents.

use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_proto::{Browsed, MAX_BROWSED_TEXT, MAX_PICTURE, Problem};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Done,
    page::Page,
    text::{line_of, lines},
};
use crate::files;

const MAX_VALUE: usize = 100 << 10;
/// Pixels of the longer side; taller pages are cut.
const MAX_SIDE: f64 = 12_000.0;
/// A picture that compresses badly is sent as JPEG.
const MAX_PNG: usize = 2 << 20;
const MAX_ARTICLE: usize = 50_000;

pub(super) async fn evaluate(page: &Page, code: &str) -> Result<Browsed, Problem> {
    let params = |by_value| {
        json!({
            "expression": code, "awaitPromise": true, "replMode": true, "userGesture": true, "returnByValue": by_value,
        })
    };
    page.acted()?;
    let answer = match page.call("Runtime.evaluate", params(true)).await {
        Ok(answer) => answer,
        // Some values cannot be sent; these are described.
        Err(Problem::Invalid { message }) if message.contains("reference chain") => {
            page.call("Runtime.evaluate", params(false)).await?
        }
        Err(problem) => return Err(problem),
    };
    if let Some(details) = answer.get("exceptionDetails") {
        let why = details["exception"]["description"].as_str().or(details["exception"]["value"].as_str());
        let why = why.or(details["text"].as_str()).unwrap_or("unknown");
        return Err(Problem::Invalid { message: format!("the code failed: {}", lines(why, 2000)) });
    }
    let result = &answer["result"];
    let shown =
        match (&result["value"], result["unserializableValue"].as_str(), result["description"].as_str()) {
            (Value::Null, Some(value), _) => value.to_owned(),
            (Value::Null, None, Some(description)) => description.to_owned(),
            (Value::Null, None, None) => {
                result["type"].as_str().filter(|t| *t != "object").unwrap_or("null").to_owned()
            }
            (Value::String(text), ..) => text.clone(),
            (value, ..) => serde_json::to_string_pretty(value).unwrap_or_default(),
        };
    let cut = (shown.len() > MAX_VALUE).then(|| format!("the value has {} bytes", shown.len()));
    Ok(Browsed { text: Some(lines(&shown, MAX_VALUE)), cut, ..Browsed::default() })
}

/// The last entries of a log, oldest first.
fn last(entries: impl DoubleEndedIterator<Item = String> + ExactSizeIterator, limit: u32) -> Done {
    let total = entries.len();
    let mut shown: Vec<String> = entries.rev().take(limit as usize).collect();
    shown.reverse();
    let cut = (shown.len() < total).then(|| format!("{} earlier ones", total - shown.len()));
    let text = Some(lines(&shown.join("\n"), MAX_VALUE));
    Ok((Browsed { text, cut, ..Browsed::default() }, Vec::new()))
}

pub(super) fn console(page: &Page, limit: u32) -> Done {
    page.tab(|tab| last(tab.console.iter().cloned(), limit))?
}

pub(super) fn network(page: &Page, limit: u32) -> Done {
    page.tab(|tab| last(tab.network.iter().map(|e| format!("{} → {}", e.what, e.result)), limit))?
}

#[derive(Deserialize)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

pub(super) async fn screenshot(page: &Page, target: Option<&str>, full_page: bool, marks: bool) -> Done {
    let area = match target {
        Some(target) => Some(area_of(page, target).await?),
        None if full_page => {
            let metrics = page.call("Page.getLayoutMetrics", json!({})).await?;
            let size = |side: &str| metrics["cssContentSize"][side].as_f64().unwrap_or(1.0);
            Some(Area { x: 0.0, y: 0.0, width: size("width"), height: size("height") })
        }
        None => None,
    };
    let mut params = json!({ "format": "png", "optimizeForSpeed": false });
    let mut cut = None;
    if let Some(area) = area {
        let (width, height) = (area.width.clamp(1.0, MAX_SIDE), area.height.clamp(1.0, MAX_SIDE));
        if area.width > MAX_SIDE || area.height > MAX_SIDE {
            cut = Some(format!("it is {:.0} × {:.0} pixels, {MAX_SIDE} are shown", area.width, area.height));
        }
        params["clip"] = json!({ "x": area.x, "y": area.y, "width": width, "height": height, "scale": 1 });
        params["captureBeyondViewport"] = true.into();
    }
    if marks {
        mark(page, true).await?;
    }
    let taken = capture(page, params).await;
    if marks {
        mark(page, false).await?;
    }
    let (bytes, mime) = taken?;
    page.describe().await?;
    Ok((
        Browsed { mime: Some(mime.into()), size: Some(bytes.len() as u64), cut, ..Browsed::default() },
        bytes,
    ))
}

async fn capture(page: &Page, mut params: Value) -> Result<(Vec<u8>, &'static str), Problem> {
    let png = decode(page.call("Page.captureScreenshot", params.clone()).await?)?;
    if png.len() <= MAX_PNG {
        return Ok((png, "image/png"));
    }
    params["format"] = "jpeg".into();
    params["quality"] = 75.into();
    let jpeg = decode(page.call("Page.captureScreenshot", params).await?)?;
    if jpeg.len() > MAX_PICTURE {
        let message = format!("the picture has {} bytes, at most {MAX_PICTURE} are possible", jpeg.len());
        return Err(Problem::Invalid { message });
    }
    Ok((jpeg, "image/jpeg"))
}

fn decode(answer: Value) -> Result<Vec<u8>, Problem> {
    let odd = |_| Problem::Invalid { message: "the browser sent no picture".into() };
    STANDARD.decode(answer["data"].as_str().unwrap_or_default()).map_err(odd)
}

/// Where an element is on the whole page.
async fn area_of(page: &Page, target: &str) -> Result<Area, Problem> {
    let (frame, mut area): (_, Area) = page.ask_about(target, "box", &[]).await?;
    let main = page.main()?;
    if frame != main {
        let scrolled = "[scrollX, scrollY]";
        let (inner, outer): ((f64, f64), (f64, f64)) =
            (page.ask(&frame, scrolled).await?, page.ask(&main, scrolled).await?);
        let (x, y) = page.to_tab(&frame, area.x - inner.0, area.y - inner.1).await?;
        (area.x, area.y) = (x + outer.0, y + outer.1);
    }
    Ok(area)
}

async fn mark(page: &Page, on: bool) -> Result<(), Problem> {
    for frame in page.frames()?.iter().take(20) {
        // A frame that does not answer shows no marks.
        let _ = tokio::time::timeout(
            page.budget(std::time::Duration::from_secs(1)),
            page.eval(frame, &format!("__bj.marks({on})")),
        )
        .await;
    }
    Ok(())
}

pub(super) async fn pdf(page: &Page, path: &str) -> Done {
    let answer = page.call("Page.printToPDF", json!({ "printBackground": true })).await?;
    let bytes = decode(answer)?;
    let failed = |(_, why): crate::connection::Failure| Problem::Invalid { message: why };
    let size = files::write(path, 0, &bytes).map_err(failed)?;
    page.describe().await?;
    Ok((Browsed { path: Some(line_of(path, 1000)), size: Some(size), ..Browsed::default() }, Vec::new()))
}

#[derive(Deserialize)]
struct Article {
    title: Option<String>,
    byline: Option<String>,
    published: Option<String>,
    markdown: String,
    cut: Option<String>,
}

pub(super) async fn extract(page: &Page) -> Result<Browsed, Problem> {
    let options = json!({ "max": MAX_ARTICLE });
    let article: Article = page.ask(&page.main()?, &format!("__bj.extract({options})")).await?;
    let mut text = String::new();
    if let Some(title) =
        article.title.filter(|title| !title.is_empty() && !article.markdown.starts_with("# "))
    {
        text = format!("# {title}\n\n");
    }
    let about: Vec<String> = [article.byline, article.published].into_iter().flatten().collect();
    if !about.is_empty() {
        text.push_str(&format!("{}\n\n", about.join(", ")));
    }
    text.push_str(&article.markdown);
    let cut = article.cut.map(|cut| line_of(&cut, 300));
    Ok(Browsed { text: Some(lines(&text, MAX_BROWSED_TEXT)), cut, ..Browsed::default() })
}
