//! The calls that trace a running target: `trace_start`, `trace_read` and `trace_stop`.

use serde::Deserialize;
use subsystem::trace::{KEPT_COUNT_DEFAULT, KEPT_COUNT_MAX, TRACE_NS_MAX, TraceSettings};
use wire::id::Nsid;

use crate::error::CallError;
use crate::rpc::Call;

/// The methods.
pub(crate) const METHODS: [&str; 3] = ["trace_start", "trace_read", "trace_stop"];

/// Events of one answer.
pub const EVENT_COUNT_MAX: usize = 8192;

/// Time of a trace, ms, unless another one is given.
const MS_DEFAULT: u64 = 10_000;

/// Events of a trace, unless another number is given.
const EVENTS_DEFAULT: u64 = 100_000;

/// What a call asks for.
#[derive(Debug)]
pub enum TraceRequest {
    /// Begin a trace.
    Start(Box<TraceSettings>),
    /// Return the oldest events, and end the trace if asked to.
    Take {
        /// Its number.
        id: u64,
        /// Most events.
        count: usize,
        /// Whether to end it.
        ends: bool,
    },
}

/// Parameters of `trace_start`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    host: Option<String>,
    subsystem: Option<String>,
    nsid: Option<u32>,
    ms: Option<u64>,
    events: Option<u64>,
    keep: Option<usize>,
}

/// Parameters of `trace_read` and `trace_stop`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Take {
    id: u64,
    count: Option<usize>,
}

impl Call {
    /// Whether it is about a trace.
    pub(crate) fn is_trace(&self) -> bool {
        METHODS.contains(&self.method.as_str())
    }

    /// What it asks for.
    ///
    /// # Errors
    /// Wrong parameters.
    pub(crate) fn trace_request(&self) -> Result<TraceRequest, CallError> {
        if self.method != "trace_start" {
            let Take { id, count } = self.params_as()?;
            let count = count.unwrap_or(EVENT_COUNT_MAX).clamp(1, EVENT_COUNT_MAX);
            return Ok(TraceRequest::Take { id, count, ends: self.method == "trace_stop" });
        }
        let start: Start = self.params_as()?;
        let within = |field, value: u64, max: u64| match value {
            value if (1..=max).contains(&value) => Ok(value),
            _ => Err(CallError::invalid(Some(field), format!("write a number from 1 to {max}"))),
        };
        let ms = within("ms", start.ms.unwrap_or(MS_DEFAULT), TRACE_NS_MAX / 1_000_000)?;
        let events = within("events", start.events.unwrap_or(EVENTS_DEFAULT), u64::MAX)?;
        let keep = start.keep.unwrap_or(KEPT_COUNT_DEFAULT);
        within("keep", keep as u64, KEPT_COUNT_MAX as u64)?;
        let mut settings = TraceSettings::new(ms.saturating_mul(1_000_000), events, keep);
        if let Some(host) = &start.host {
            let host = host.parse().map_err(|error| CallError::invalid(Some("host"), format!("{error}")));
            settings.host = Some(host?);
        }
        if let Some(nqn) = &start.subsystem {
            let nqn = nqn.parse().map_err(|error| CallError::invalid(Some("subsystem"), format!("{error}")));
            settings.subsystem = Some(nqn?);
        }
        settings.nsid = start.nsid.map(Nsid::new);
        Ok(TraceRequest::Start(Box::new(settings)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn call(method: &str, params: Value) -> Result<TraceRequest, CallError> {
        let Value::Object(params) = params else { unreachable!("a table") };
        Call { method: method.into(), params }.trace_request()
    }

    #[test]
    fn parameters_are_read_and_mistakes_are_named() {
        let started = call("trace_start", json!({ "nsid": 3, "ms": 5, "host": "nqn.2026-01.io.nvlane:h" }));
        let Ok(TraceRequest::Start(settings)) = started else { panic!("{started:?}") };
        assert_eq!((settings.for_ns, settings.nsid), (5_000_000, Some(Nsid::new(3))));
        let read = call("trace_read", json!({ "id": 7, "count": 1 << 20 }));
        assert!(
            matches!(read, Ok(TraceRequest::Take { id: 7, count: EVENT_COUNT_MAX, ends: false })),
            "{read:?}"
        );
        for (method, params, field) in [
            ("trace_start", json!({ "ms": 0 }), "ms: write a number from 1 to 3600000"),
            ("trace_start", json!({ "keep": 1 << 20 }), "keep: write a number"),
            ("trace_start", json!({ "subsystem": "disks" }), "subsystem: "),
            ("trace_start", json!({ "host": "" }), "host: "),
            ("trace_start", json!({ "hosts": "a" }), "unknown field `hosts`"),
            ("trace_read", json!({}), "missing field `id`"),
        ] {
            let error = call(method, params).expect_err(field);
            assert!(error.message.contains(field), "{}", error.message);
        }
    }
}
