//! Options of a target, on this machine or on another.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::target_options::{KeyAccess, Spin, TargetTuning};

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
    /// Number of the study server's cores before the first of them.
    pub first_core: u32,
    /// Address of its memcached listener, if it has one; a study server chooses another.
    pub memcached: Option<SocketAddr>,
    /// Files with its keys, and its demands on its hosts.
    pub keys: Option<KeyFiles>,
    /// On this machine: listen address; port 0 takes a free one.
    pub listen: String,
    /// On this machine: the core of its reactor; `arguments` may name several.
    pub core: Option<usize>,
    /// On this machine: more options of `nvlane target`.
    pub arguments: Vec<String>,
    /// On this machine: command prefix, such as `ip netns exec NAME`.
    pub launcher: Vec<String>,
}

/// Files with the keys of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The key of TLS.
    pub tls_key: PathBuf,
    /// The host's secret.
    pub secret: PathBuf,
    /// The target's demands on its hosts.
    pub access: KeyAccess,
}

impl KeyFiles {
    /// The arguments of `nvlane target`.
    pub fn arguments(&self) -> Vec<String> {
        let (tls_key, secret) = (self.tls_key.display().to_string(), self.secret.display().to_string());
        let words: &[&str] = match self.access {
            KeyAccess::Tls => &["--tls", "required", "--tls-key", &tls_key],
            KeyAccess::Authentication => {
                &["--tls", "allowed", "--tls-key", &tls_key, "--dhchap-secret", &secret]
            }
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
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
            first_core: 0,
            memcached: None,
            keys: None,
            listen: "127.0.0.1:0".into(),
            core: None,
            arguments: Vec::new(),
            launcher: Vec::new(),
        }
    }

    /// These options with reactors on this number of cores.
    #[must_use]
    pub fn on_cores(self, count: u32) -> Self {
        Self { core_count: Some(count), ..self }
    }

    /// These options on a study server without the first of its cores.
    #[must_use]
    pub fn behind_cores(self, count: u32) -> Self {
        Self { first_core: count, ..self }
    }

    /// These options for a target whose reactor does not spin.
    #[must_use]
    pub(crate) fn without_spin(self) -> Self {
        self.tuned(TargetTuning { spin: Some(Spin::Never), ..TargetTuning::default() })
    }

    /// These options with others of the data path.
    #[must_use]
    pub fn tuned(self, tuning: TargetTuning) -> Self {
        Self { tuning, ..self }
    }
}
