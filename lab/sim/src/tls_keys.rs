//! The target's configured key of TLS, which reloads change, and the connections that are valid with it.

use subsystem::config::TlsPolicy;

use crate::keys::OTHER_KEY;
use crate::tls_right::{Channel, Right};

#[derive(Debug, Default)]
pub(crate) struct TlsKeys {
    pub(crate) current: u8,
    /// A reload is replacing the key before.
    is_changing: bool,
}

impl TlsKeys {
    /// Another key takes the place of this one.
    pub(crate) fn begin_change(&mut self) {
        self.current = (self.current + 1) % OTHER_KEY;
        self.is_changing = true;
    }

    /// The change is complete.
    pub(crate) fn end_change(&mut self) {
        self.is_changing = false;
    }

    /// Whether a connection that is accepted now may be served.
    pub(crate) fn right(&self, policy: TlsPolicy, channel: Channel) -> Right {
        match channel {
            Channel::Clear if policy == TlsPolicy::Required => Right::Refuse,
            Channel::Clear => Right::Serve,
            Channel::Configured(OTHER_KEY) => Right::Refuse,
            Channel::Configured(_) if self.is_changing => Right::Either,
            Channel::Configured(number) if number == self.current => Right::Serve,
            Channel::Configured(_) => Right::Refuse,
            // A target that was started again has forgotten it.
            Channel::Generated => Right::Either,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_key_is_refused_once_the_reload_is_over() {
        let mut keys = TlsKeys::default();
        let right = |keys: &TlsKeys, number| keys.right(TlsPolicy::Required, Channel::Configured(number));
        assert_eq!((right(&keys, 0), right(&keys, OTHER_KEY)), (Right::Serve, Right::Refuse));
        keys.begin_change();
        assert_eq!((right(&keys, 0), right(&keys, 1)), (Right::Either, Right::Either));
        keys.end_change();
        assert_eq!((right(&keys, 0), right(&keys, 1)), (Right::Refuse, Right::Serve));
        assert_eq!(keys.right(TlsPolicy::Required, Channel::Clear), Right::Refuse);
        assert_eq!(keys.right(TlsPolicy::Concatenated, Channel::Clear), Right::Serve);
    }
}
