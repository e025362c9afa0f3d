//! Which hosts must authenticate, and with which secrets. wire §22

use std::collections::BTreeMap;
use std::str::FromStr;

use security::controller::ControllerSettings;
use security::group::Group;
use security::hash::HashFunction;
use security::names::Names;
use security::secret::Secret;
use security::secure_channel::SecureChannel;
use wire::nqn::HostName;

/// The secrets of a subsystem's hosts, or where they are. A host without a secret is not asked to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication<S = Secrets> {
    /// By name of the host.
    pub hosts: BTreeMap<HostName, S>,
    /// Those of all other hosts.
    pub others: Option<S>,
    /// Usable hash functions, the preferred one first.
    pub hashes: Vec<HashFunction>,
    /// Usable groups, the preferred one first.
    pub groups: Vec<Group>,
    /// Action when the re-authentication of a host fails.
    pub refused_again: RefusedAgain,
}

/// Action on the association of a host that has authenticated, when its re-authentication fails: because its secret was
/// replaced, for instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusedAgain {
    /// It ends.
    #[default]
    Disconnect,
    /// It stays, on its earlier authentication.
    Keep,
}

impl FromStr for RefusedAgain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "disconnect" => Ok(Self::Disconnect),
            "keep" => Ok(Self::Keep),
            _ => Err(format!("\"{text}\" is neither \"disconnect\" nor \"keep\"")),
        }
    }
}

/// The secrets of an association.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// The secret that the host must have.
    pub host: Secret,
    /// The secret that the subsystem shows to a host that asks for it.
    pub controller: Option<Secret>,
}

/// The hash functions, the strongest first.
pub const HASHES: [HashFunction; 3] = [HashFunction::Sha512, HashFunction::Sha384, HashFunction::Sha256];

/// The groups unless others are configured, in the order of preference: larger ones cost more CPU time and prove the
/// same secret. Hosts that support none of them use the null group. With 6144 or 8192 bits any peer that connects costs
/// many milliseconds of a core, so these groups are used only where they are configured.
pub const GROUPS: [Group; 4] = [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Null];

impl<S> Default for Authentication<S> {
    fn default() -> Self {
        Self {
            hosts: BTreeMap::new(),
            others: None,
            hashes: HASHES.to_vec(),
            groups: GROUPS.to_vec(),
            refused_again: RefusedAgain::default(),
        }
    }
}

impl PartialEq for Secrets {
    fn eq(&self, other: &Self) -> bool {
        let is_same_controller = match (&self.controller, &other.controller) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            _ => false,
        };
        self.host.is_same(&other.host) && is_same_controller
    }
}

impl Eq for Secrets {}

impl<S> Authentication<S> {
    /// Whether no host must authenticate.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.others.is_none()
    }

    /// The secrets of a host; `None` if it need not authenticate.
    #[must_use]
    pub fn of(&self, host: &HostName) -> Option<&S> {
        self.hosts.get(host).or(self.others.as_ref())
    }
}

impl Authentication {
    /// Whether both give each host the same secrets.
    pub(crate) fn has_same_secrets(&self, other: &Self) -> bool {
        self.hosts == other.hosts && self.others == other.others
    }

    /// The settings of a queue of an association, if its host must authenticate; `earlier` are accepted as well.
    /// `secure_channel` may be asked for.
    pub(crate) fn settings(
        &self,
        names: Names,
        earlier: Option<&Self>,
        secure_channel: SecureChannel,
    ) -> Option<ControllerSettings> {
        let Secrets { host, controller } = self.of(&names.host)?.clone();
        let before = earlier.and_then(|earlier| earlier.of(&names.host));
        Some(ControllerSettings {
            host,
            controller,
            earlier: before
                .map(|before| (before.host.clone(), before.controller.clone()))
                .into_iter()
                .collect(),
            hashes: self.hashes.clone(),
            groups: self.groups.clone(),
            secure_channel,
            names,
        })
    }
}
