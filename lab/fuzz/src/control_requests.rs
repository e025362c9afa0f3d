//! Requests at the control socket, to a target that only checks.

use control::rpc::{Splitter, answer};
use control::{CallError, Control, Plant};
use subsystem::config::{ConfigFile, TargetConfig};
use subsystem::operator::{Outline, Report};

const TOML: &str = "[[listener]]\naddress = \"127.0.0.1:4420\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = [\"h\"]\n\
    [[subsystem.namespace]]\nstorage = \"ram:1M\"\n[[subsystem.namespace]]\nnsid = 4\nstorage = \"kv:ram:64M\"\n";

/// Calls of one input: each may write and read a configuration.
const CALLS_MAX: usize = 40;

/// What would run.
struct Checker(TargetConfig);

impl Plant for Checker {
    fn change(&mut self, before: &TargetConfig, wanted: &TargetConfig, _: bool) -> Result<Report, Report> {
        assert_eq!(*before, self.0, "a change begins where the last one ended");
        assert_eq!(wanted.check(), [], "an invalid configuration would be applied");
        self.0 = wanted.clone();
        Ok(Report::default())
    }

    fn running(&self) -> Option<&Outline> {
        None
    }

    fn bound(&self, _: &str) -> Option<String> {
        None
    }

    fn look_after_storage(&mut self) {}

    fn state(&self) -> Option<serde_json::Value> {
        None
    }
}

/// Cuts the bytes into requests and carries them out. What callers see then is a valid configuration, and the running
/// one.
pub fn control_requests(data: &[u8]) {
    let base = ConfigFile::parse("base", TOML).expect("valid").config;
    let mut control = Control::start(&base, None).unwrap_or_else(|why| panic!("{why}")).control;
    let mut checker = Checker(base);
    let mut splitter = Splitter::default();
    splitter.add(data);
    let mut call_count = 0;
    while let Ok(Some(request)) = splitter.next_value() {
        let response = answer(&request, |call| {
            call_count += 1;
            match call_count > CALLS_MAX {
                true => Err(CallError::ending()),
                false => control.perform(&call, &mut checker),
            }
        });
        if let Some(response) = response {
            serde_json::from_slice::<serde_json::Value>(&response).expect("a response is JSON");
        }
    }
    assert_eq!(*control.config(), checker.0, "what callers see is what runs");
    if control.revision() > 0 {
        let exported = control.export().unwrap_or_else(|error| panic!("{}", error.message));
        let read =
            ConfigFile::parse("exported", &exported).unwrap_or_else(|errors| panic!("{errors}\n{exported}"));
        assert_eq!(read.config, *control.config(), "{exported}");
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(imported) = control::import::import(text)
    {
        ConfigFile::parse("imported", &imported.toml)
            .unwrap_or_else(|errors| panic!("{errors}\n{}", imported.toml));
    }
}
