//! Tools that send a request. Parameters are encoded into path and query, and placed into the body as JSON; what comes
//! back is told in a few readable fields. Addresses and tokens are the operator's, redirects are not followed.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use belljar_tools::{ToolError, ToolOutput, clipped};
use reqwest::{Method, Url, header::HeaderName};
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::{
    arguments::Parameters,
    environment::{Resolved, check_secret},
    file,
    problems::Check,
    template::{Template, find},
    tool::{MAX_RESULT, invalid, output, seconds, tell},
};
use crate::config::Environment;

/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 2 << 20;
/// Bytes of an answer that an error message repeats.
const MAX_REASON: usize = 2_000;
/// Items of a list that a result carries.
const MAX_ITEMS: usize = 200;
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Where requests go, and with what.
#[derive(Debug)]
pub(super) struct Service {
    name: String,
    base: Resolved,
    headers: Vec<(HeaderName, Resolved)>,
    client: OnceLock<reqwest::Client>,
}

#[derive(Debug)]
pub(super) struct Http {
    service: Arc<Service>,
    method: Method,
    path: Template,
    query: BTreeMap<String, Template>,
    body: Option<Body>,
    timeout: Duration,
    timeout_from: Option<String>,
    answer: Answer,
    check: Option<FollowUp>,
}

/// JSON in whose strings parameters may stand.
#[derive(Debug)]
enum Body {
    Text(Template),
    List(Vec<Body>),
    Object(BTreeMap<String, Body>),
    Value(Value),
}

#[derive(Debug, Default)]
struct Answer {
    text: Option<Template>,
    pick: BTreeMap<String, String>,
    list: Option<String>,
}

/// A second look, after the request went well.
#[derive(Debug)]
struct FollowUp {
    name: String,
    parameter: Option<String>,
    service: Arc<Service>,
    path: Template,
}

impl Service {
    pub(super) fn check(
        name: &str,
        service: &file::Service,
        environment: &Environment,
        check: &mut Check<'_>,
    ) -> Self {
        let base = Resolved::new(service.base.get_ref(), environment);
        if let Ok(text) = base.get() {
            check.keep(&service.base, base_url(text));
        }
        let mut headers = Vec::new();
        for (name, value) in &service.headers {
            check.keep(value, check_secret(name, value.get_ref()));
            let parsed = HeaderName::try_from(name.as_str());
            let parsed = parsed.map_err(|_| format!("{name:?} cannot be the name of a header"));
            let Some(header) = check.keep(value, parsed) else { continue };
            headers.push((header, Resolved::new(value.get_ref(), environment)));
        }
        Self { name: name.to_owned(), base, headers, client: OnceLock::new() }
    }

    fn client(&self) -> Result<&reqwest::Client, ToolError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        // Another part of the program may have done this already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none());
        if self.base.get().is_ok_and(|base| base.starts_with("http://")) {
            // Machines without any certificates exist, and none is needed here.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| ToolError::Fatal(format!("no HTTP client: {error}")))?;
        Ok(self.client.get_or_init(|| client))
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<(u16, Vec<u8>), ToolError> {
        let missing = |missing: &super::environment::Missing| tell("NOT_CONFIGURED", missing.to_string());
        let base = self.base.get().map_err(missing)?;
        let mut url = base_url(base).and_then(|_| {
            Url::parse(&format!("{}{path}", base.trim_end_matches('/'))).map_err(|error| error.to_string())
        });
        if let Ok(url) = &mut url
            && !query.is_empty()
        {
            url.query_pairs_mut().extend_pairs(query);
        }
        let url = url.map_err(|why| {
            tell("NOT_CONFIGURED", format!("The address of {} is unusable: {why}", self.name))
        })?;
        let mut request = self.client()?.request(method.clone(), url).timeout(timeout);
        for (name, value) in &self.headers {
            request = request.header(name, value.get().map_err(missing)?);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        // The address may hold a password, so the error must not.
        let failed = |error: reqwest::Error| {
            let error = error.without_url();
            let why = if error.is_timeout() {
                format!("no answer within {} s", timeout.as_secs())
            } else {
                causes(&error)
            };
            tell("UPSTREAM_ERROR", format!("{} cannot be reached ({method} {path}): {why}", self.name))
        };
        let mut answer = request.send().await.map_err(failed)?;
        let status = answer.status().as_u16();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            let room = MAX_ANSWER - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if bytes.len() == MAX_ANSWER {
                break;
            }
        }
        Ok((status, bytes))
    }
}

impl Http {
    pub(super) fn check(
        http: &file::Http,
        services: &BTreeMap<String, Arc<Service>>,
        parameters: &Parameters,
        check: &mut Check<'_>,
    ) -> Option<Self> {
        let service = service(&http.service, services, check);
        let method = Method::from_bytes(http.method.get_ref().as_bytes()).ok();
        let method = method.filter(|method| {
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
        });
        let unknown = || format!("{:?} is no method: GET, POST, PUT, PATCH or DELETE", http.method.get_ref());
        let method = check.keep(&http.method, method.ok_or_else(unknown));
        let path = path(&http.path, parameters, check);
        let mut query = BTreeMap::new();
        for (name, value) in &http.query {
            query.extend(parameters.template(value, check).map(|value| (name.clone(), value)));
        }
        let body =
            http.body.as_ref().and_then(|body| check.keep(body, Body::parse(body.get_ref(), parameters)));
        let timeout_from = http.timeout_from.as_ref().map(|name| parameters.named(name, "integer", check));
        let text = http.result.text.as_ref();
        let text = text.and_then(|text| check.keep(text, Template::parse(text.get_ref())));
        let answer = Answer { text, pick: http.result.pick.clone(), list: http.result.list.clone() };
        let second = http.check.as_ref().and_then(|second| {
            Some(FollowUp {
                name: second.name.clone(),
                parameter: second.parameter.as_ref().map(|name| parameters.named(name, "boolean", check)),
                service: self::service(&second.service, services, check)?,
                path: self::path(&second.path, parameters, check)?,
            })
        });
        Some(Self {
            service: service?,
            method: method?,
            path: path?,
            query,
            body,
            timeout: Duration::from_secs(http.timeout.clamp(1, MAX_TIMEOUT.as_secs())),
            timeout_from,
            answer,
            check: second,
        })
    }

    pub(super) async fn send(&self, given: &Map<String, Value>) -> Result<ToolOutput, ToolError> {
        let path = self.path.path(given).map_err(|why| invalid(format!("Argument {why}")))?;
        let query: Vec<_> =
            self.query.iter().filter_map(|(name, value)| Some((name.as_str(), value.text(given)?))).collect();
        let body = self.body.as_ref().and_then(|body| body.fill(given));
        let asked = self.timeout_from.as_ref().and_then(|name| seconds(given, name));
        let timeout = asked.unwrap_or(self.timeout).clamp(Duration::from_secs(1), MAX_TIMEOUT);
        let (status, bytes) = self.service.send(&self.method, &path, &query, body.as_ref(), timeout).await?;
        let text = String::from_utf8_lossy(&bytes);
        let answer: Option<Value> = serde_json::from_str(&text).ok();
        if !(200..300).contains(&status) {
            let name = &self.service.name;
            let what = format!("{name} answered {status}{} to {} {path}", reason(status), self.method);
            return Err(tell("UPSTREAM_ERROR", format!("{what}: {}", said(answer.as_ref(), &text))));
        }
        let check = match &self.check {
            Some(check) => Some((check.name.as_str(), check.ask(given).await)),
            None => None,
        };
        Ok(self.answer.tell(answer, &text, check))
    }
}

impl FollowUp {
    async fn ask(&self, given: &Map<String, Value>) -> String {
        if self.parameter.as_ref().is_some_and(|name| given.get(name) != Some(&Value::Bool(true))) {
            return "skipped".to_owned();
        }
        let Ok(path) = self.path.path(given) else { return "failed".to_owned() };
        match self.service.send(&Method::GET, &path, &[], None, CHECK_TIMEOUT).await {
            Ok((200..300, _)) => "healthy".to_owned(),
            Ok((status, _)) => format!("unhealthy (status {status})"),
            Err(ToolError::Tell { message, .. } | ToolError::Fatal(message)) => format!("failed: {message}"),
        }
    }
}

impl Answer {
    fn tell(&self, answer: Option<Value>, text: &str, check: Option<(&str, String)>) -> ToolOutput {
        let mut result = match (&self.list, answer) {
            (Some(name), Some(Value::Array(items))) => {
                let total = items.len();
                let items: Vec<_> = items.iter().take(MAX_ITEMS).map(|item| self.picked(item)).collect();
                json!({ "total_count": total, name.as_str(): items })
            }
            (_, Some(answer @ Value::Object(_))) => self.picked(&answer),
            (_, Some(answer)) => json!({ "answer": answer }),
            (_, None) => json!({ "answer": text }),
        };
        if let Some((name, outcome)) = check {
            result[name] = json!(outcome);
        }
        // Never more than a reader can take: what does not fit is told as the beginning of its text.
        let whole = result.to_string();
        if whole.len() > MAX_RESULT {
            let (beginning, note) = clipped(&whole, MAX_RESULT / 2);
            result = json!({ "answer": beginning, "note": note });
        }
        let told = self.text.as_ref().map(|template| clipped(&template.describe(&result), MAX_RESULT).0);
        output(result, told)
    }

    fn picked(&self, value: &Value) -> Value {
        if self.pick.is_empty() || !value.is_object() {
            return value.clone();
        }
        let field = |(name, place): (&String, &String)| Some((name.clone(), find(value, place)?.clone()));
        Value::Object(self.pick.iter().filter_map(field).collect())
    }
}

impl Body {
    fn parse(value: &toml::Value, parameters: &Parameters) -> Result<Self, String> {
        Ok(match value {
            toml::Value::String(text) => {
                let template = Template::parse(text)?;
                if let Some(name) = template.names().find(|name| !parameters.has(name)) {
                    return Err(parameters.unknown(name));
                }
                Self::Text(template)
            }
            toml::Value::Array(values) => Self::List(
                values.iter().map(|value| Self::parse(value, parameters)).collect::<Result<_, _>>()?,
            ),
            toml::Value::Table(table) => {
                let entry = |(name, value): (&String, &toml::Value)| {
                    Ok::<_, String>((name.clone(), Self::parse(value, parameters)?))
                };
                Self::Object(table.iter().map(entry).collect::<Result<_, _>>()?)
            }
            other => Self::Value(file::json(other)),
        })
    }

    /// What depends on a parameter that was not given is left out.
    fn fill(&self, given: &Map<String, Value>) -> Option<Value> {
        Some(match self {
            Self::Text(template) => match template.whole() {
                Some(name) => given.get(name)?.clone(),
                None => Value::String(template.text(given)?),
            },
            Self::List(values) => Value::Array(values.iter().filter_map(|value| value.fill(given)).collect()),
            Self::Object(fields) => {
                let field = |(name, value): (&String, &Self)| Some((name.clone(), value.fill(given)?));
                Value::Object(fields.iter().filter_map(field).collect())
            }
            Self::Value(value) => value.clone(),
        })
    }
}

fn service(
    name: &Spanned<String>,
    services: &BTreeMap<String, Arc<Service>>,
    check: &mut Check<'_>,
) -> Option<Arc<Service>> {
    let known: Vec<_> = services.keys().map(String::as_str).collect();
    let missing = || format!("there is no [service.{}]; there are: {}", name.get_ref(), known.join(", "));
    check.keep(name, services.get(name.get_ref()).cloned().ok_or_else(missing))
}

fn path(text: &Spanned<String>, parameters: &Parameters, check: &mut Check<'_>) -> Option<Template> {
    if !text.get_ref().starts_with('/') || text.get_ref().contains(['?', '#']) {
        check.at(text, "a path begins with a slash and has no ? or #; what is asked for goes into query");
    }
    parameters.template(text, check)
}

fn base_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("the base is no URL: {error}"))?;
    if !["http", "https"].contains(&url.scheme()) || url.query().is_some() || url.fragment().is_some() {
        return Err("the base must be an http or https URL without ? and #".to_owned());
    }
    Ok(url)
}

fn reason(status: u16) -> String {
    let status = reqwest::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).map(|reason| format!(" {reason}")).unwrap_or_default()
}

/// What an API says of a failure.
fn said(answer: Option<&Value>, text: &str) -> String {
    let field = |name: &str| answer?.get(name)?.as_str().map(str::to_owned);
    let said = field("message").or_else(|| field("error")).or_else(|| field("detail"));
    let said = said.unwrap_or_else(|| text.trim().to_owned());
    if said.is_empty() { "it gave no reason".to_owned() } else { clipped(&said, MAX_REASON).0 }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_filled_by_structure() {
        let mut parameters = Parameters::default();
        parameters.offer("title", json!({}));
        parameters.offer("labels", json!({}));
        let body: toml::Table = "a = '{title}'\nb = ['x {title}', 1]\nc = '{labels}'".parse().unwrap();
        let body = Body::parse(&toml::Value::Table(body), &parameters).unwrap();
        let hostile = "\", \"admin\": true, \"x\": \"";
        let given = json!({ "title": hostile });
        let filled = body.fill(given.as_object().unwrap()).unwrap();
        assert_eq!(filled, json!({ "a": hostile, "b": [format!("x {hostile}"), 1] }));
        assert!(Body::parse(&toml::Value::String("{nobody}".to_owned()), &parameters).is_err());
    }

    #[test]
    fn an_answer_is_told_in_its_fields() {
        let pick = [("number", "number"), ("by", "user.login")];
        let pick = pick.map(|(name, place)| (name.to_owned(), place.to_owned())).into();
        let text = Some(Template::parse("#{number} by {by}").unwrap());
        let one = Answer { text, pick, list: None };
        let issue = json!({ "number": 7, "user": { "login": "ada" }, "secret": "x" });
        let told = one.tell(Some(issue.clone()), "", None);
        assert_eq!(told.structured, Some(json!({ "number": 7, "by": "ada" })));
        assert_eq!(told.content, [belljar_tools::Content::Text("#7 by ada".to_owned())]);
        let many = Answer { list: Some("issues".to_owned()), text: None, ..one };
        let told = many.tell(Some(json!([issue])), "", Some(("health", "ok".to_owned())));
        let expected = json!({ "total_count": 1, "issues": [{ "number": 7, "by": "ada" }], "health": "ok" });
        assert_eq!(told.structured, Some(expected));
        let huge = Answer::default().tell(Some(json!({ "x": "y".repeat(1_000_000) })), "", None);
        assert!(huge.structured.unwrap().to_string().len() <= MAX_RESULT);
        assert_eq!(
            Answer::default().tell(None, "plain", None).structured,
            Some(json!({ "answer": "plain" }))
        );
    }
}
