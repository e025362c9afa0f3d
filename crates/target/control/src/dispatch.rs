//! Which method a call is of: nvlane's own, or SPDK's.

use serde_json::Value;

use crate::control::{Control, Plant};
use crate::error::{CallError, METHOD};
use crate::methods::METHODS;
use crate::rpc::Call;
use crate::{spdk, trace, volumes};

impl Call {
    /// Whether it asks for a reload, which the target performs.
    #[must_use]
    pub fn is_reload(&self) -> bool {
        self.method == "reload"
    }

    /// Whether it asks for what people watch, which the target tells.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.method == "live"
    }

    /// Whether it changes anything.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self.method.as_str(), "add" | "set" | "remove")
            || spdk::is_change(&self.method)
            || volumes::is_change(&self.method)
    }

    /// The noun and the name in the call, for the audit log. Values are left out, since a caller may have put a secret there.
    #[must_use]
    pub fn object(&self) -> String {
        let text = |key: &str| match self.params.get(key) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let words = [
            "noun",
            "subsystem",
            "nqn",
            "name",
            "nsid",
            "lvol_name",
            "snapshot_name",
            "clone_name",
            "source",
            "volume",
        ];
        words.iter().filter_map(|key| text(key)).collect::<Vec<_>>().join(" ")
    }
}

impl Control {
    /// Carries out a call.
    ///
    /// # Errors
    /// Why it is refused; nothing was changed.
    pub fn perform(&mut self, call: &Call, plant: &mut dyn Plant) -> Result<Value, CallError> {
        if spdk::knows(&call.method) {
            return self.perform_spdk(call, plant);
        }
        if call.is_trace() {
            return plant.trace(call.trace_request()?);
        }
        if volumes::METHODS.contains(&call.method.as_str()) {
            return self.perform_volumes(call, plant);
        }
        self.perform_own(call, plant).unwrap_or_else(|| {
            let own = METHODS.into_iter().chain(trace::METHODS).chain(volumes::METHODS);
            let known = own.chain(spdk::METHODS.iter().map(|(name, _)| *name));
            let hint = store::nearest(&call.method, known)
                .map_or_else(String::new, |near| format!(": did you mean {near}?"));
            Err(CallError::new(METHOD, format!("no method {}{hint}", call.method)))
        })
    }
}
