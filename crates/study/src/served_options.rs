//! Options of a target, on this machine or on another.

use crate::target_options::TargetTuning;

/// Options of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedOptions {
    /// Namespaces, as arguments of `--namespace`; the first is NSID 1.
    pub namespaces: Vec<String>,
    /// Size of a file that the study server makes for one more namespace, bytes. On this machine experiments make their own.
    pub scratch_bytes: Option<u64>,
    /// Options of the data path.
    pub tuning: TargetTuning,
    /// Whether the target writes a state file.
    pub tells: bool,
    /// Number of cores of its reactors, of those that the bench has for targets; `None`: one, or all of a study server.
    pub core_count: Option<u32>,
    /// On this machine: listen address; port 0 takes a free one.
    pub listen: String,
    /// On this machine: the core of its reactor; `arguments` may name several.
    pub core: Option<usize>,
    /// On this machine: more options of `nvlane target`.
    pub arguments: Vec<String>,
    /// On this machine: command prefix, such as `ip netns exec NAME`.
    pub launcher: Vec<String>,
}

impl ServedOptions {
    /// A target with these namespaces on a free port of 127.0.0.1, or of the study server's address.
    pub fn of<Text: Into<String>>(namespaces: impl IntoIterator<Item = Text>) -> Self {
        Self {
            namespaces: namespaces.into_iter().map(Into::into).collect(),
            scratch_bytes: None,
            tuning: TargetTuning::default(),
            tells: false,
            core_count: None,
            listen: "127.0.0.1:0".into(),
            core: None,
            arguments: Vec::new(),
            launcher: Vec::new(),
        }
    }

    /// The same with reactors on this number of cores.
    #[must_use]
    pub fn on_cores(self, count: u32) -> Self {
        Self { core_count: Some(count), ..self }
    }

    /// The same with these options of the data path.
    #[must_use]
    pub fn tuned(self, tuning: TargetTuning) -> Self {
        Self { tuning, ..self }
    }
}
