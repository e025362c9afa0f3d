//! The time of other programs on the cores of a study server.

use load::others::{Census, Others};

use super::connection::ServerConnection;
use super::protocol::Request;
use crate::energy::boot_id;
use crate::error::Error;

/// The count that runs on the server.
#[derive(Debug, Default)]
pub(super) struct FarOthers(Option<Census>);

impl FarOthers {
    /// Begins a count. Returns this process, and the identifier of the machine since its boot.
    pub(super) fn watch(&mut self) -> (u32, Option<String>) {
        self.0 = Some(Census::now(&[]));
        (std::process::id(), boot_id())
    }

    pub(super) fn end(&mut self, cores: &[usize]) -> Result<Others, String> {
        let before = self.0.take().ok_or("no count has begun")?;
        Ok(Census::now(&[]).others_since(&before, cores))
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
    pub(crate) fn watch_others(&self) -> Result<Counts, Error> {
        let (process, boot): (u32, Option<String>) = self.request(&Request::WatchOthers)?;
        Ok(counts(process, boot.as_deref(), boot_id().as_deref()))
    }

    /// The time of others on them since then.
    pub(crate) fn others(&self) -> Result<Others, Error> {
        self.request(&Request::Others)
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
        assert_eq!(others.watch().0, std::process::id());
        assert!(others.end(&[]).unwrap().core_count > 0);
    }
}
