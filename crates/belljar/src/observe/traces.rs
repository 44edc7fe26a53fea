//! Spans of calls, sent as OTLP over HTTP, and the place of a call in its caller's trace.

use std::{
    str::FromStr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use axum::http::Uri;
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
        Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter},
};
use tokio::runtime::Handle;

use super::Outcome;
use crate::config::Config;

/// How long the last spans may take.
const FLUSH: Duration = Duration::from_secs(2);
/// A collector that is away would fill the log otherwise.
const BETWEEN_COMPLAINTS: Duration = Duration::from_secs(60);
/// Characters of a `tracestate` that everybody must pass on; longer ones may be dropped.
const MAX_TRACESTATE: usize = 512;

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// None when spans go nowhere.
pub(super) fn tracer() -> Option<&'static SdkTracer> {
    TRACER.get()
}

/// Sends spans, if there is somewhere to send them.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Exports run on the runtime of the caller.
    pub(crate) fn start(config: &Config) -> anyhow::Result<Self> {
        if config.otel_endpoint.is_empty() {
            return Ok(Self(None));
        }
        let provider = open(&config.otel_endpoint)
            .with_context(|| format!("otel.endpoint ({})", config.origin("otel.endpoint")))?;
        // A second server in one process would send to the first one's collector; there is none.
        let _ = TRACER.set(provider.tracer("belljar"));
        Ok(Self(Some(provider)))
    }

    /// Sends what is left, but does not wait for it for long.
    pub(crate) async fn shutdown(self) {
        let Some(provider) = self.0 else { return };
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the last traces could not be sent in time");
        }
    }
}

fn open(endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    let (url, host) = traces_url(endpoint)?;
    // An error says that somebody did so already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let otlp = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(url)
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .build()
        .context("cannot prepare the exporter of traces")?;
    let exporter =
        Exporter { otlp: Arc::new(otlp), host, runtime: Handle::current(), complained: Mutex::new(None) };
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build())
}

/// The URL to post to, and the host in it: other parts may hold secrets.
fn traces_url(endpoint: &str) -> anyhow::Result<(String, String)> {
    let uri = endpoint.parse::<Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    let Some(host) = uri.as_ref().and_then(Uri::host) else {
        bail!("{endpoint:?} is not an http or https URL; write one like http://localhost:4318");
    };
    let base = endpoint.trim_end_matches('/');
    let url = if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") };
    Ok((url, host.to_owned()))
}

/// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over our own words.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let named = |key: &'static str| detected.get(&key.into()).map(|value| value.to_string());
    let mut builder = Resource::builder();
    if named("service.name").is_none_or(|name| name.starts_with("unknown_service")) {
        builder = builder.with_service_name("belljar");
    }
    if named("service.version").is_none() {
        builder = builder.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    }
    builder.build()
}

/// Brings exports to a runtime, which the thread that asks for them does not have, and failures to the log.
#[derive(Debug)]
struct Exporter {
    otlp: Arc<opentelemetry_otlp::SpanExporter>,
    host: String,
    runtime: Handle,
    complained: Mutex<Option<Instant>>,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (otlp, spans) = (self.otlp.clone(), batch.len());
        let sent = self.runtime.spawn(async move { otlp.export(batch).await }).await;
        let sent = sent.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        if let Err(error) = &sent {
            let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
            if may_complain(&mut complained, Instant::now()) {
                let host = &self.host;
                tracing::warn!(
                    "{spans} spans are lost, {host} did not take them ({error}): see otel.endpoint"
                );
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Called before the first export, so nobody else holds it.
        if let Some(otlp) = Arc::get_mut(&mut self.otlp) {
            otlp.set_resource(resource);
        }
    }
}

fn may_complain(last: &mut Option<Instant>, now: Instant) -> bool {
    let may = last.is_none_or(|last| now.duration_since(last) >= BETWEEN_COMPLAINTS);
    if may {
        *last = Some(now);
    }
    may
}

/// The caller's place in a trace, as W3C's `traceparent` and `tracestate` tell it.
#[derive(Debug, Clone)]
pub(crate) struct TraceParent {
    header: String,
    context: SpanContext,
}

impl TraceParent {
    /// None if it is malformed: then the call begins a trace of its own, as the standard demands.
    pub(crate) fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = TraceId::from_bytes(hex(parts.next()?, 32)?.to_be_bytes());
        let parent = SpanId::from_bytes((hex(parts.next()?, 16)? as u64).to_be_bytes());
        let flags = hex(parts.next()?, 2)? as u8;
        // Later versions may have more to say, in the same place only what version 0 says.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let flags = if version == 0 { flags } else { flags & 1 };
        let state = tracestate.filter(|state| state.len() <= MAX_TRACESTATE);
        let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
        let context = SpanContext::new(trace, parent, TraceFlags::new(flags), true, state);
        context.is_valid().then(|| Self { header: header(&context), context })
    }

    pub(super) fn header(&self) -> &str {
        &self.header
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let lowercase = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let valid = text.len() == digits && text.bytes().all(lowercase);
    valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn header(context: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags())
}

/// The span of one call.
pub(super) struct CallSpan(Span);

impl CallSpan {
    pub(super) fn open(
        tracer: &SdkTracer,
        name: String,
        parent: Option<&TraceParent>,
        attributes: Vec<(&'static str, String)>,
    ) -> Self {
        let mut context = Context::new();
        if let Some(parent) = parent {
            context = context.with_remote_span_context(parent.context.clone());
        }
        let system = KeyValue::new("rpc.system", "jsonrpc");
        let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
        let builder =
            tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes.chain([system]));
        Self(tracer.build_with_context(builder, &context))
    }

    pub(super) fn traceparent(&self) -> Option<String> {
        let context = self.0.span_context();
        context.is_valid().then(|| header(context))
    }

    pub(super) fn close(mut self, outcome: Outcome) {
        let text = outcome.text();
        if outcome.is_error() {
            self.0.set_attribute(KeyValue::new("error.type", text.clone()));
            self.0.set_status(Status::error(text.clone()));
        }
        self.0.set_attribute(KeyValue::new("belljar.outcome", text));
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
