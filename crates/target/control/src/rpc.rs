//! JSON-RPC 2.0 on a stream: objects or batches of them, with or without line ends between them.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::error::{CallError, PARSE, REQUEST};

/// Limit of a request or batch, bytes.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Limit of tables and lists inside each other.
pub const DEPTH_MAX: usize = 32;

/// Limit of requests in a batch.
pub const BATCH_MAX: usize = 256;

/// Time from the first byte of a request to its last.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The method.
    pub method: String,
    /// Its parameters.
    pub params: Map<String, Value>,
}

/// Cuts a stream of bytes into JSON values, by their brackets.
#[derive(Debug, Default)]
pub struct Splitter {
    bytes: Vec<u8>,
    /// Bytes that were looked at.
    seen: usize,
    depth: usize,
    is_in_text: bool,
    is_escaped: bool,
    /// When the first byte of an incomplete value came.
    began: Option<Instant>,
}

/// Bytes that no JSON value can be cut from. The stream cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(pub String);

impl Splitter {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes of the next complete value.
    ///
    /// # Errors
    /// The bytes are no JSON table or list, or too many, or too deep.
    pub fn next_value(&mut self) -> Result<Option<Vec<u8>>, Unusable> {
        if self.depth == 0 {
            let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
            let start = self.bytes.iter().position(|byte| !is_space(byte)).unwrap_or(self.bytes.len());
            self.bytes.drain(..start);
            self.seen = 0;
            match self.bytes.first() {
                None => return Ok(None),
                Some(b'{' | b'[') => {}
                Some(_) => return Err(Unusable("expected a JSON object or a list of them".into())),
            }
        }
        while let Some(byte) = self.bytes.get(self.seen).copied() {
            self.seen += 1;
            if self.seen > REQUEST_BYTES_MAX {
                return Err(Unusable(format!("a request has at most {REQUEST_BYTES_MAX} bytes")));
            }
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_text => self.is_escaped = true,
                b'"' => self.is_in_text = !self.is_in_text,
                _ if self.is_in_text => {}
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.depth > DEPTH_MAX {
                        return Err(Unusable(format!("a request is at most {DEPTH_MAX} levels deep")));
                    }
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        let rest = self.bytes.split_off(self.seen);
                        self.seen = 0;
                        self.began = None;
                        return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether a value has begun, and has taken longer than [`REQUEST_TIME`].
    pub fn is_late(&mut self, now: Instant) -> bool {
        if self.depth == 0 {
            return false;
        }
        now.duration_since(*self.began.get_or_insert(now)) >= REQUEST_TIME
    }
}

/// Carries out the calls in a JSON value. Returns the response; `None` if none is asked for.
pub fn answer(bytes: &[u8], mut perform: impl FnMut(Call) -> Result<Value, CallError>) -> Option<Vec<u8>> {
    let response = match serde_json::from_slice(bytes) {
        Ok(Value::Array(batch)) => of_batch(batch, perform),
        Ok(request) => of_one(request, &mut perform),
        Err(error) => Some(failed(&Value::Null, &CallError::new(PARSE, format!("this is no JSON: {error}")))),
    };
    response.map(|response| response.to_string().into_bytes())
}

/// The response to bytes that cannot be cut into requests.
#[must_use]
pub fn unusable(why: &Unusable) -> Vec<u8> {
    failed(&Value::Null, &CallError::new(PARSE, why.0.clone())).to_string().into_bytes()
}

/// The response to a caller that is refused.
#[must_use]
pub fn refused(why: &str) -> Vec<u8> {
    failed(&Value::Null, &CallError::new(REQUEST, why)).to_string().into_bytes()
}

fn of_batch(batch: Vec<Value>, mut perform: impl FnMut(Call) -> Result<Value, CallError>) -> Option<Value> {
    if batch.is_empty() || batch.len() > BATCH_MAX {
        let message = format!("a batch has 1 to {BATCH_MAX} requests");
        return Some(failed(&Value::Null, &CallError::new(REQUEST, message)));
    }
    let responses: Vec<Value> =
        batch.into_iter().filter_map(|request| of_one(request, &mut perform)).collect();
    (!responses.is_empty()).then_some(Value::Array(responses))
}

fn of_one(request: Value, perform: &mut impl FnMut(Call) -> Result<Value, CallError>) -> Option<Value> {
    let wrong = |id: &Value, message: &str| Some(failed(id, &CallError::new(REQUEST, message)));
    let Value::Object(mut request) = request else {
        return wrong(&Value::Null, "a request is a JSON object");
    };
    let id = request.remove("id");
    if !matches!(id, None | Some(Value::String(_) | Value::Number(_) | Value::Null)) {
        return wrong(&Value::Null, "id is text or a number");
    }
    let shown_id = id.clone().unwrap_or_default();
    // SPDK's own clients always send it, its server does without.
    if request.remove("jsonrpc").is_some_and(|version| version != "2.0") {
        return wrong(&shown_id, "jsonrpc is \"2.0\"");
    }
    let Some(Value::String(method)) = request.remove("method") else {
        return wrong(&shown_id, "method is missing, or no text");
    };
    let params = match request.remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => {
            let error = CallError::invalid(Some("params"), "parameters have names: write an object");
            return id.is_some().then(|| failed(&shown_id, &error));
        }
    };
    let result = perform(Call { method, params });
    id.map(|id| match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => failed(&id, &error),
    })
}

fn failed(id: &Value, error: &CallError) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}
