//! ANA states of namespaces, as the controller's ANA log reports them.

use std::sync::Arc;

use wire::id::Nsid;

use crate::attachment::{Barrier, Inaccessible};

/// The namespaces that are not accessible on the current connection.
#[derive(Debug)]
pub(super) struct AnaStates {
    inaccessible: Inaccessible,
    /// `inaccessible` has entries: each command is compared with them before it is sent.
    has_any: bool,
    /// The log was requested and has not been read yet.
    is_requested: bool,
}

impl Default for AnaStates {
    fn default() -> Self {
        Self { inaccessible: Arc::new([]), has_any: false, is_requested: false }
    }
}

impl AnaStates {
    /// Whether any namespace is not accessible.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.has_any
    }

    /// Why commands of a namespace are not sent. A command for all namespaces fails if it would fail on any one of
    /// them.
    pub(super) fn of(&self, nsid: Nsid) -> Option<Barrier> {
        if nsid == Nsid::ALL {
            let mut barriers = self.inaccessible.iter().map(|(_, barrier)| *barrier);
            return barriers.find(|barrier| barrier.awaited().is_err());
        }
        let at = self.inaccessible.binary_search_by_key(&nsid, |(nsid, _)| *nsid).ok()?;
        self.inaccessible.get(at).map(|(_, barrier)| *barrier)
    }

    /// Takes the content of the log. Returns whether it differs from the last.
    pub(super) fn update(&mut self, inaccessible: &Inaccessible) -> bool {
        let has_changed = self.inaccessible != *inaccessible;
        self.inaccessible = Arc::clone(inaccessible);
        self.has_any = !inaccessible.is_empty();
        self.is_requested = false;
        has_changed
    }

    /// Notes that the log must be read again. Returns whether it has to be requested now.
    pub(super) fn request(&mut self) -> bool {
        !std::mem::replace(&mut self.is_requested, true)
    }
}

#[cfg(test)]
mod tests {
    use wire::log::ana::AnaState;

    use super::*;

    #[test]
    fn all_namespaces_are_lost_with_any_one_of_them() {
        let [one, two] = [1, 2].map(Nsid::new);
        let mut states = AnaStates::default();
        for (reported, of_all) in [
            (vec![], None),
            (vec![(one, Barrier::Ana(AnaState::CHANGE)), (two, Barrier::Ana(AnaState::INACCESSIBLE))], None),
            (
                vec![
                    (one, Barrier::Ana(AnaState::INACCESSIBLE)),
                    (two, Barrier::Ana(AnaState::PERSISTENT_LOSS)),
                ],
                Some(Barrier::Ana(AnaState::PERSISTENT_LOSS)),
            ),
            (
                vec![(one, Barrier::Ana(AnaState::INACCESSIBLE)), (two, Barrier::Replaced)],
                Some(Barrier::Replaced),
            ),
        ] {
            let reported: Inaccessible = reported.into();
            states.update(&reported);
            assert_eq!(states.of(Nsid::ALL), of_all, "{reported:?}");
            assert_eq!(states.of(one), reported.first().map(|(_, barrier)| *barrier));
        }
    }
}
