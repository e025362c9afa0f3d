//! The bill of materials: every crate that is linked into a program, as CycloneDX 1.5.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command::{cargo, root, text_of};

/// The bill of this package of the workspace, as JSON.
pub(super) fn bill_of(package: &str, version: &str) -> Result<Vec<u8>> {
    let format = ["--edges", "normal", "--prefix", "none", "--format", "{p}\t{l}"];
    let tree = text_of(cargo(&["tree", "--locked", "--package", package]).args(format))?;
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    let sums = checksums(&lock);
    // A crate that appeared before ends with (*).
    let crates = tree.lines().filter_map(|line| line.split_once('\t')).map(|(name, license)| {
        let mut words = name.split_whitespace();
        let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        ((name, version.trim_start_matches('v')), license.trim_end_matches(" (*)"))
    });
    let crates: BTreeMap<_, _> = crates.filter(|((name, _), _)| *name != package).collect();
    let components: Vec<Value> = crates
        .iter()
        .map(|((name, version), license)| {
            let purl = format!("pkg:cargo/{name}@{version}");
            let mut component = json!({
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{ "expression": license.replace('/', " OR ") }],
            });
            if let Some(sum) = sums.get(&(*name, *version)) {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
            }
            component
        })
        .collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "bom-ref": package, "name": package, "version": version } },
        "components": components,
    });
    Ok(serde_json::to_vec_pretty(&bill)?)
}

/// The SHA-256 of each crate's source in the registry, by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let entries = lock.split("[[package]]").skip(1);
    let field = |entry: &'_ str, name: &str| -> Option<(usize, usize)> {
        let start = entry.find(&format!("\n{name} = \""))? + name.len() + 5;
        Some((start, start + entry[start..].find('"')?))
    };
    let of = |entry| {
        let text = |name| field(entry, name).map(|(start, end)| &entry[start..end]);
        Some(((text("name")?, text("version")?), text("checksum")?))
    };
    entries.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::checksums;

    #[test]
    fn crates_of_the_registry_have_sums() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.2.3\"\nsource = \"registry\"\nchecksum = \"00ff\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";
        let sums = checksums(lock);
        assert_eq!(sums.get(&("a", "1.2.3")), Some(&"00ff"));
        assert_eq!(sums.len(), 1);
    }
}
