//! Toolset `sessions`: code and commands in sandboxes that are made as they are needed. A session is a context under
//! another name, so ids and names of either are accepted here and there.

mod background;
pub(crate) mod execute_code;
pub(crate) mod execute_command;
pub(crate) mod get_sessions;
pub(crate) mod get_volume_path;
mod rendered;
pub(crate) mod stop_session;

use std::sync::Arc;

use belljar_sandbox::{Caller, ContextInfo, Error, Flavor, Language, NewContext, SandboxService, Settings};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{CallContext, ToolError};

/// What a sandbox is made of: `python` and `node` are the built-in template with that interpreter started, other names
/// are the operator's.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Template(String);

impl Template {
    /// The interpreter that is started, and the template if it is not the built-in one.
    pub(crate) fn resolve(
        asked: Option<&Self>,
        service: &SandboxService,
    ) -> Result<(Language, Option<String>), Error> {
        match asked.map(|template| template.0.as_str()) {
            None | Some("python") => Ok((Language::Python, None)),
            Some("node") => Ok((Language::Javascript, None)),
            Some(name) => service.template(name).map(|found| (found.language(), Some(found.name))),
        }
    }

    pub(crate) fn of(info: &ContextInfo) -> &str {
        match (&info.template, info.language) {
            (Some(template), _) => template,
            (None, Language::Python) => "python",
            (None, Language::Javascript) => "node",
        }
    }

    /// Tells models what there is to choose from, when it is more than the two that the schema names.
    pub(crate) fn describe(schema: &mut Map<String, Value>, settings: &Settings) {
        let names: Vec<String> = settings.templates.all().into_iter().map(|template| template.name).collect();
        if let Some(description) = schema["properties"]["template"]["description"].as_str()
            && !names.is_empty()
        {
            let description = format!("{description} The operator's own: {}.", names.join(", "));
            schema["properties"]["template"]["description"] = description.into();
        }
    }
}

/// The service's type knows nothing of schemas.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Size {
    Small,
    Medium,
    Large,
}

impl Size {
    pub(crate) fn flavor(self) -> Flavor {
        match self {
            Self::Small => Flavor::Small,
            Self::Medium => Flavor::Medium,
            Self::Large => Flavor::Large,
        }
    }
}

pub(crate) fn flavor_name(flavor: Option<Flavor>) -> &'static str {
    flavor.map_or("custom", Flavor::as_str)
}

/// A session in use. One that was made for this call and that nobody is told of, because the call fails or is given
/// up, is stopped: nobody could.
struct Session {
    info: ContextInfo,
    created: bool,
    untold: Option<(Arc<SandboxService>, Caller)>,
}

impl Session {
    /// The one that was named, or a new one when none was.
    async fn open(
        cx: &CallContext,
        given: Option<&str>,
        template: Option<&Template>,
        size: Option<Size>,
    ) -> Result<Self, ToolError> {
        if let Some(given) = given {
            let info = cx.service.find_context(&cx.caller, given).map_err(told)?;
            agrees(&info, template, size)?;
            return Ok(Self { info, created: false, untold: None });
        }
        let (language, template) = Template::resolve(template, &cx.service).map_err(told)?;
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let new = NewContext {
            name: format!("session-{}", &unique[..8]),
            language,
            template,
            description: String::new(),
            flavor: Some(size.unwrap_or(Size::Small).flavor()),
            network: None,
        };
        let info = cx.service.create_context(&cx.caller, new).await.map_err(told)?;
        Ok(Self { info, created: true, untold: Some((Arc::clone(&cx.service), cx.caller.clone())) })
    }

    /// The result names it: from here on it is the caller's to stop.
    fn tell(&mut self) {
        self.untold = None;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let (Some((service, caller)), Ok(runtime)) =
            (self.untold.take(), tokio::runtime::Handle::try_current())
        {
            let id = self.info.id.clone();
            runtime.spawn(async move {
                // It may have been stopped by other means.
                let _ = service.stop_context(&caller, &id).await;
            });
        }
    }
}

/// A session cannot become another one.
fn agrees(info: &ContextInfo, template: Option<&Template>, size: Option<Size>) -> Result<(), ToolError> {
    let refuse = |argument: &str, is: &str, asked: &str| {
        Err(ToolError::invalid(format!(
            "Session {} has {argument} '{is}', not '{asked}'. Leave out {argument} to use it as it is, or \
             session_id to start a new one",
            info.id
        )))
    };
    if let Some(Template(asked)) = template.filter(|template| template.0 != Template::of(info)) {
        let asked: String = asked.chars().take(100).collect();
        return refuse("template", Template::of(info), &asked);
    }
    match size.map(Size::flavor) {
        Some(asked) if info.flavor != Some(asked) => {
            refuse("flavor", flavor_name(info.flavor), asked.as_str())
        }
        _ => Ok(()),
    }
}

/// The service speaks of contexts and their tools; here they are sessions.
fn told(error: Error) -> ToolError {
    let code = error.code();
    let message = match error {
        Error::NotFound(id) => format!(
            "Session not found: {id}. It may have been stopped or timed out; get_sessions shows the live ones, \
             execute_code without session_id starts a new one"
        ),
        Error::AmbiguousName { name, ids } => format!(
            "More than one session is named {name:?}: {}. Use one of these ids instead",
            ids.join(", ")
        ),
        Error::TooManyContexts { live, limit } => format!(
            "There are already {live} live sessions, the limit is {limit}. Stop one with stop_session first; \
             get_sessions shows them"
        ),
        Error::CreationFailed(why) => format!("Failed to start a session: {why}"),
        Error::StopFailed { id, why } => format!("Failed to stop session {id}: {why}"),
        other => other.to_string(),
    };
    ToolError::Tell { code, message }
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::Limits;

    use super::*;

    pub(super) fn info() -> ContextInfo {
        let created_at = jiff::Timestamp::from_second(1_761_116_022).unwrap();
        ContextInfo {
            id: "ctx-1".to_owned(),
            name: "session-1a2b3c4d".to_owned(),
            description: String::new(),
            language: Language::Javascript,
            template: None,
            flavor: Some(Flavor::Small),
            limits: Limits::default(),
            network: belljar_sandbox::Mode::None,
            busy: false,
            created_at,
            last_used: created_at,
        }
    }

    #[test]
    fn errors_speak_of_sessions() {
        let errors = [
            Error::NotFound("ctx-9".to_owned()),
            Error::AmbiguousName { name: "a".to_owned(), ids: vec!["ctx-1".to_owned(), "ctx-2".to_owned()] },
            Error::TooManyContexts { live: 50, limit: 50 },
            Error::CreationFailed("no memory".to_owned()),
            Error::StopFailed { id: "ctx-1".to_owned(), why: "it hangs".to_owned() },
            Error::LimitExceeded("as it is".to_owned()),
        ];
        insta::assert_debug_snapshot!(errors.map(told));
    }

    #[test]
    fn a_session_stays_what_it_is() {
        let custom = ContextInfo { flavor: None, ..info() };
        agrees(&info(), None, None).unwrap();
        let named = |name: &str| Template(name.to_owned());
        agrees(&info(), Some(&named("node")), Some(Size::Small)).unwrap();
        let own = ContextInfo { template: Some("tools".to_owned()), ..info() };
        agrees(&own, Some(&named("tools")), None).unwrap();
        insta::assert_debug_snapshot!([
            agrees(&info(), Some(&named("python")), None).unwrap_err(),
            agrees(&own, Some(&named("node")), None).unwrap_err(),
            agrees(&info(), None, Some(Size::Large)).unwrap_err(),
            agrees(&custom, None, Some(Size::Small)).unwrap_err(),
        ]);
    }
}
