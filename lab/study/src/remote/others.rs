//! The time of other programs on the cores of a study server.

use load::others::{Census, Others};

use super::connection::ServerConnection;
use super::protocol::{Reply, Request};
use crate::energy::boot_id;
use crate::error::Error;

/// The count that runs on the server.
#[derive(Debug, Default)]
pub(super) struct FarOthers(Option<Census>);

impl FarOthers {
    /// Begins a count.
    pub(super) fn watch(&mut self) -> Reply {
        self.0 = Some(Census::now(&[]));
        Reply::OthersWatched { process: std::process::id(), boot: boot_id() }
    }

    /// Ends it.
    ///
    /// # Errors
    /// None has begun.
    pub(super) fn end(&mut self, cores: &[usize]) -> Result<Reply, String> {
        let before = self.0.take().ok_or("no count has begun")?;
        Ok(Reply::Others(Census::now(&[]).others_since(&before, cores)))
    }
}

/// The place where a server counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// On another machine.
    There,
    /// On this machine, where it is this process: each would count the other as one that does not belong.
    Here(u32),
}

impl ServerConnection {
    /// Begins to count the time of others on the server's cores.
    ///
    /// # Errors
    /// The server is lost.
    pub(crate) fn watch_others(&self) -> Result<Counts, Error> {
        match self.request(&Request::WatchOthers)? {
            Reply::OthersWatched { process, boot } => {
                Ok(counts(process, boot.as_deref(), boot_id().as_deref()))
            }
            _ => Err(self.confused()),
        }
    }

    /// The time of others on them since then.
    ///
    /// # Errors
    /// The server is lost.
    pub(crate) fn others(&self) -> Result<Others, Error> {
        match self.request(&Request::Others)? {
            Reply::Others(others) => Ok(others),
            _ => Err(self.confused()),
        }
    }
}

fn counts(process: u32, boot: Option<&str>, own_boot: Option<&str>) -> Counts {
    if boot.is_some() && boot == own_boot { Counts::Here(process) } else { Counts::There }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_this_machine_is_no_other() {
        assert_eq!(counts(7, Some("a"), Some("a")), Counts::Here(7));
        assert_eq!(counts(7, Some("a"), Some("b")), Counts::There);
        assert_eq!(counts(7, None, None), Counts::There);
    }

    #[test]
    fn a_count_is_begun_before_it_ends() {
        let mut others = FarOthers::default();
        assert!(others.end(&[0]).is_err());
        assert!(
            matches!(others.watch(), Reply::OthersWatched { process, .. } if process == std::process::id())
        );
        assert!(matches!(others.end(&[]), Ok(Reply::Others(others)) if others.core_count > 0));
    }
}
