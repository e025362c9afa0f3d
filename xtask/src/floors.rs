//! The folders of packages as floors: a package depends on packages of its own floor and of those below it.
//!
//! Development dependencies may come from `lab`: its peers test the product.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{cargo, root};

/// Folders and the folders that their packages may use besides their own.
const FLOORS: [(&str, &[&str]); 9] = [
    ("crates/system", &[]),
    ("crates/protocol", &["crates/system"]),
    ("crates/storage", &["crates/system", "crates/protocol"]),
    ("crates/host", &["crates/system", "crates/protocol"]),
    ("crates/target", &["crates/system", "crates/protocol", "crates/storage"]),
    ("crates/bindings", &["crates/system", "crates/protocol", "crates/host"]),
    ("crates/programs", PRODUCT),
    (
        "lab",
        &[
            "crates/programs",
            "crates/target",
            "crates/host",
            "crates/storage",
            "crates/protocol",
            "crates/system",
        ],
    ),
    ("", &["lab", "crates/protocol"]),
];

const PRODUCT: &[&str] =
    &["crates/system", "crates/protocol", "crates/storage", "crates/host", "crates/target"];

/// Checks the dependencies of every package.
pub(crate) fn check() -> Result<()> {
    let output = cargo(&["metadata", "--format-version=1", "--no-deps", "--locked", "--offline"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let wrong = wrong_dependencies(&metadata, root())?;
    ensure!(wrong.is_empty(), "dependencies against the order of the floors:\n{}", wrong.join("\n"));
    Ok(())
}

/// The dependencies between packages below `top` that point upward.
fn wrong_dependencies(metadata: &Value, top: &Path) -> Result<Vec<String>> {
    let floors: BTreeMap<&str, &[&str]> = FLOORS.into_iter().collect();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().context("packages")? {
        let manifest = Path::new(package["manifest_path"].as_str().context("a manifest")?);
        let folder = manifest.parent().context("a folder")?;
        let floor = floor_of(folder, top)?;
        let below = floors.get(floor).with_context(|| format!("{floor} is not in FLOORS"))?;
        for dependency in package["dependencies"].as_array().context("dependencies")? {
            let Some(path) = dependency["path"].as_str() else { continue };
            let other = floor_of(Path::new(path), top)?;
            let is_of_tests = dependency["kind"] == "dev" && other == "lab";
            if other != floor && !below.contains(&other) && !is_of_tests {
                wrong.push(format!("{} ({floor}) uses {} ({other})", package["name"], dependency["name"]));
            }
        }
    }
    Ok(wrong)
}

/// The floor of a package's folder.
fn floor_of<'a>(folder: &'a Path, top: &Path) -> Result<&'a str> {
    let inside = folder.strip_prefix(top).with_context(|| format!("{} is elsewhere", folder.display()))?;
    let floor = inside.parent().context("a package at the top")?;
    floor.to_str().context("a folder in UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(folder: &str, other: &str, kind: Option<&str>) -> Vec<String> {
        let metadata = serde_json::json!({ "packages": [{
            "name": "a", "manifest_path": format!("/top/{folder}/a/Cargo.toml"),
            "dependencies": [
                { "name": "b", "path": format!("/top/{other}/b"), "kind": kind },
                { "name": "libc", "kind": null },
            ],
        }] });
        wrong_dependencies(&metadata, Path::new("/top")).unwrap()
    }

    #[test]
    fn a_package_uses_its_own_floor_and_those_below() {
        assert_eq!(wrong("crates/host", "crates/protocol", None), [""; 0]);
        assert_eq!(wrong("crates/host", "crates/host", None), [""; 0]);
        assert_eq!(wrong("lab", "crates/programs", None), [""; 0]);
        let upward = wrong("crates/protocol", "crates/host", None);
        assert_eq!(upward, [r#""a" (crates/protocol) uses "b" (crates/host)"#]);
        assert_eq!(wrong("crates/host", "crates/target", None).len(), 1);
    }

    #[test]
    fn tests_of_the_product_may_use_the_laboratory() {
        assert_eq!(wrong("crates/host", "lab", Some("dev")), [""; 0]);
        assert_eq!(wrong("crates/host", "lab", None).len(), 1);
    }

    #[test]
    fn every_floor_that_may_be_used_exists() {
        for (_, below) in FLOORS {
            for floor in below {
                assert!(root().join(floor).is_dir(), "{floor}");
            }
        }
    }
}
