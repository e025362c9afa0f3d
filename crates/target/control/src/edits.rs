//! Edits of the tree that several methods make.

use serde_json::{Map, Value, json};

use crate::error::{CallError, REFUSED};
use crate::tree::IS_NUMBERED;

/// The lowest number that is free, unless one is given.
pub(crate) fn add_number(values: &mut Map<String, Value>, list: &[Value]) {
    if values.get("nsid").is_none_or(Value::is_null) {
        let taken: Vec<Option<u64>> = list.iter().map(|namespace| namespace["nsid"].as_u64()).collect();
        let free = (1_u64..).find(|nsid| !taken.contains(&Some(*nsid))).unwrap_or(1);
        values.insert("nsid".into(), free.into());
    }
}

/// Writes the numbers down that would be others once a namespace is gone.
pub(crate) fn keep_numbers(list: &mut [Value], removed: Option<u64>) {
    for namespace in list.iter_mut().filter(|namespace| namespace["nsid"].as_u64() > removed) {
        if let Some(table) = namespace.as_object_mut() {
            table.remove(IS_NUMBERED);
        }
    }
}

/// Adds a host to those that may connect, and its secrets. Returns its name.
pub(crate) fn add_host(
    subsystem: &mut Map<String, Value>,
    mut values: Map<String, Value>,
) -> Result<String, CallError> {
    let name = values.get("nqn").and_then(Value::as_str).map(str::to_owned);
    let name = name.ok_or_else(|| CallError::invalid(Some("nqn"), "missing: name the host"))?;
    values.remove("nqn");
    let has_secrets = !values.is_empty();
    match subsystem.get_mut("hosts") {
        Some(Value::Array(hosts)) if hosts.iter().any(|host| host.as_str() == Some(&name)) => {
            if !has_secrets {
                return Err(CallError::new(REFUSED, format!("host {name} is there already")));
            }
        }
        Some(Value::Array(hosts)) => hosts.push(name.clone().into()),
        _ if has_secrets => {}
        _ => {
            let message = "any host may connect: set hosts of the subsystem to a list first";
            return Err(CallError::new(REFUSED, message));
        }
    }
    if has_secrets {
        key_of_host(subsystem, &name)?.append(&mut values);
    }
    Ok(name)
}

/// The table with the secrets of a host.
pub(crate) fn key_of_host<'a>(
    subsystem: &'a mut Map<String, Value>,
    name: &str,
) -> Result<&'a mut Map<String, Value>, CallError> {
    let broken = || CallError::new(REFUSED, "the configuration has another shape");
    let list = subsystem.entry("host").or_insert_with(|| json!([])).as_array_mut().ok_or_else(broken)?;
    let at = match list.iter().position(|table| table["nqn"] == name) {
        Some(at) => at,
        None => {
            list.push(json!({ "nqn": name }));
            list.len() - 1
        }
    };
    list[at].as_object_mut().ok_or_else(broken)
}

/// Removes a table from a list of named ones.
pub(crate) fn remove_named(table: &mut Map<String, Value>, list: &str, key: &str, name: &str) {
    if let Some(Value::Array(list)) = table.get_mut(list) {
        list.retain(|table| text_of(&table[key]) != name);
    }
}

/// Text as it is, and other values as JSON.
pub(crate) fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
