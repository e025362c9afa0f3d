//! Why a call is refused.

use serde::Serialize;
use serde_json::{Value, json};

/// An error of JSON-RPC.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallError {
    /// Number of the error.
    pub code: i64,
    /// The reason, and what would be right.
    pub message: String,
    /// What a program needs: the fields that are wrong, the present revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Not JSON.
pub(crate) const PARSE: i64 = -32700;
/// JSON, but no request.
pub(crate) const REQUEST: i64 = -32600;
/// No such method.
pub(crate) const METHOD: i64 = -32601;
/// A parameter, or the configuration that would result, is wrong.
pub(crate) const PARAMETERS: i64 = -32602;
/// The target failed.
pub(crate) const INTERNAL: i64 = -32603;
/// The change is refused, and nothing was changed.
pub(crate) const REFUSED: i64 = -32001;
/// The configuration has another revision than the caller saw.
pub(crate) const REVISION: i64 = -32002;
/// There is no object of this name.
pub(crate) const MISSING: i64 = -32003;
/// There is a volume or snapshot of this name.
pub(crate) const EXISTS: i64 = -32004;
/// A namespace is on the volume.
pub(crate) const BUSY: i64 = -32005;
/// The file system has no space.
pub(crate) const NO_SPACE: i64 = -32006;
/// The quota of the pool does not allow it.
pub(crate) const QUOTA: i64 = -32007;
/// The file system cannot do it.
pub(crate) const UNSUPPORTED: i64 = -32008;

impl CallError {
    /// The target is ending, and answers no more.
    #[must_use]
    pub fn ending() -> Self {
        Self::new(INTERNAL, "the target is ending")
    }

    /// Whether the call itself is wrong, rather than what it asks for refused.
    #[must_use]
    pub fn is_usage(code: i64) -> bool {
        [METHOD, PARAMETERS, PARSE, REQUEST].contains(&code)
    }

    /// What the call asks for is refused.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(REFUSED, message)
    }

    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// A wrong parameter.
    pub(crate) fn invalid(field: Option<&str>, message: impl Into<String>) -> Self {
        Self::invalid_fields(vec![(field.map(str::to_owned), message.into())])
    }

    /// Wrong parameters, each with its field.
    pub(crate) fn invalid_fields(found: Vec<(Option<String>, String)>) -> Self {
        let line = |(field, message): &(Option<String>, String)| match field {
            Some(field) => format!("{field}: {message}"),
            None => message.clone(),
        };
        let lines: Vec<String> = found.iter().map(line).collect();
        let fields: Vec<Value> =
            found.into_iter().map(|(field, message)| json!({ "field": field, "message": message })).collect();
        Self { code: PARAMETERS, message: lines.join("\n"), data: Some(json!({ "fields": fields })) }
    }

    /// There is no such object.
    pub(crate) fn missing(what: &str, name: &str, known: &[String]) -> Self {
        let hint = match store::nearest(name, known.iter().map(String::as_str).collect::<Vec<_>>()) {
            Some(near) => format!(": did you mean {near}?"),
            None if known.is_empty() => format!(": there is no {what} yet"),
            None => {
                let shown: Vec<&str> = known.iter().take(8).map(String::as_str).collect();
                let more = if known.len() > shown.len() { ", …" } else { "" };
                format!(": there is {}{more}", shown.join(", "))
            }
        };
        Self::new(MISSING, format!("no {what} {name}{hint}"))
    }
}
