//! Admin commands that have no file of their own: Abort and Keep Alive. wire §9, wire §18

use crate::id::{Nsid, Qid};
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

tables! {
    /// Fields of an Abort: which command. wire §18
    pub command AbortCommand {
        cdw10 [15:0] sqid: Qid, "Queue of the command.";
        cdw10 [31:16] cid: u16, "Id of the command.";
    }

    /// Result dword of an Abort. wire §18
    pub bits AbortResult: u32 {
        [0] not_aborted, with_not_aborted: bool, "The command was not aborted.";
    }
}

impl AbortCommand {
    /// An Abort with these fields.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        self.fill(Sqe::new(AdminOpcode::ABORT.raw(), Nsid::NONE))
    }
}

impl Sqe {
    /// Asks for a command to be aborted.
    #[must_use]
    pub fn abort(sqid: Qid, cid: u16) -> Self {
        AbortCommand { sqid, cid }.to_sqe()
    }

    /// Restarts the keep-alive timer. wire §9
    #[must_use]
    pub const fn keep_alive() -> Self {
        Self::new(AdminOpcode::KEEP_ALIVE.raw(), Nsid::NONE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn an_abort_names_queue_and_command() {
        let mut expected = [0; 64];
        (expected[0], expected[1], expected[39]) = (0x08, 0x40, 0x5A);
        expected[40..44].copy_from_slice(&[0x02, 0x01, 0x04, 0x03]);
        assert_eq!(Sqe::abort(Qid::new(0x0102), 0x0304).as_bytes(), expected);
        assert!(AbortResult::from_bits(1).not_aborted());
    }

    #[test]
    fn a_keep_alive_is_an_opcode_and_nothing_else() {
        let mut expected = [0; 64];
        (expected[0], expected[1], expected[39]) = (0x18, 0x40, 0x5A);
        assert_eq!(Sqe::keep_alive().as_bytes(), expected);
    }

    proptest! {
        #[test]
        fn an_abort_gives_back_what_it_was_made_of(sqid: u16, cid: u16) {
            let abort = AbortCommand { sqid: Qid::new(sqid), cid };
            prop_assert_eq!(AbortCommand::from_sqe(&abort.to_sqe()), abort);
        }
    }
}
