//! A queue that goes on elsewhere: after its handshake, with its Connect, before anything else.

use crate::command_table::Slot;
use crate::controller_queue::{ControllerQueue, QueueSettings};
use crate::handshake::Agreement;

/// State of a queue that executes its Connect and has nothing else outstanding. Unlike the queue it may move to
/// another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parted {
    agreement: Agreement,
    /// Id of the Connect.
    cid: u16,
    /// Head of the host's submission queue.
    head: u16,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, P, C: Default> ControllerQueue<B, P, C> {
    /// State with which another queue takes over from this one, which executes the command in `slot`. `None` if
    /// anything else is outstanding: other commands, bytes to send, an incomplete PDU.
    #[must_use]
    pub fn part(&self, slot: Slot) -> Option<Parted> {
        let is_quiet = !self.has_failed
            && self.framer.is_between_pdus()
            && self.framer.failure().is_none()
            && self.caravan.is_empty()
            && self.table.is_alone(slot);
        is_quiet.then(|| Parted {
            agreement: self.agreement,
            cid: self.table.entry(slot).cid,
            head: self.submission.head,
        })
    }

    /// The queue that goes on in place of the one that was parted, and the slot of its Connect.
    #[must_use]
    pub fn resume(settings: QueueSettings, parted: Parted) -> (Self, Slot) {
        let mut queue = Self::new(settings);
        queue.agree(parted.agreement);
        queue.submission.head = parted.head;
        let slot = queue.table.insert(parted.cid);
        (queue, slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caravan::Piece;
    use crate::controller_queue::Event;
    use crate::handshake::HostOffer;
    use wire::pdu::{CapsuleCmd, Digests, PduLayout, PduType};
    use wire::sqe::Sqe;
    use wire::status::Status;
    use zerocopy::IntoBytes;

    type Queue = ControllerQueue<Vec<u8>, Vec<u8>>;

    fn sent(queue: &mut Queue) -> Vec<u8> {
        queue.caravan().ring();
        let mut bytes = Vec::new();
        for piece in queue.caravan().pieces() {
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(piece),
                Piece::Payload(payload, range) => bytes.extend_from_slice(&payload[range]),
            }
        }
        queue.caravan().on_sent(bytes.len(), drop);
        bytes
    }

    fn command(cid: u16) -> Vec<u8> {
        let layout = PduLayout::without_data(PduType::CapsuleCmd, Digests::HEADER);
        let mut bytes =
            CapsuleCmd::new(&layout, Sqe::flush(wire::id::Nsid::NONE).with_cid(cid)).as_bytes().to_vec();
        bytes.extend(wire::digest::header_digest(&bytes).to_le_bytes());
        bytes
    }

    /// A queue with digests that executes command 7.
    fn connecting() -> (Queue, Slot) {
        let mut queue = Queue::new(QueueSettings::default());
        let offer = HostOffer { digests: Digests::HEADER, ..HostOffer::default() };
        let request = offer.ic_req();
        let mut input = request.as_bytes();
        assert!(matches!(queue.next_event(&mut input), Ok(Some(Event::Initialised(_)))));
        let bytes = command(7);
        let mut input = &bytes[..];
        let Ok(Some(Event::Command { slot, .. })) = queue.next_event(&mut input) else { panic!("a command") };
        (queue, slot)
    }

    #[test]
    fn a_host_cannot_tell_that_its_queue_went_on_elsewhere() {
        let (mut stays, slot) = connecting();
        assert_eq!(stays.part(slot), None, "the answer to ICReq waits to be sent");
        sent(&mut stays);
        let parted = stays.part(slot).expect("nothing else is under way");
        let (mut moves, moved) = Queue::resume(QueueSettings::default(), parted);
        for (queue, slot) in [(&mut stays, slot), (&mut moves, moved)] {
            queue.establish(32, false);
            queue.complete(slot, Status::SUCCESS, 3);
        }
        assert_eq!(sent(&mut stays), sent(&mut moves));
        let (bytes, mut answers) = (command(9), Vec::new());
        for queue in [&mut stays, &mut moves] {
            let mut input = &bytes[..];
            let Ok(Some(Event::Command { slot, .. })) = queue.next_event(&mut input) else {
                panic!("a command")
            };
            queue.complete(slot, Status::SUCCESS, 0);
            answers.push(sent(queue));
        }
        assert_eq!(answers[0], answers[1]);
    }

    #[test]
    fn a_queue_with_more_to_do_stays() {
        let (mut queue, slot) = connecting();
        sent(&mut queue);
        let bytes = command(8);
        let (mut head, mut rest) = bytes.split_at(20);
        assert!(matches!(queue.next_event(&mut head), Ok(None)));
        assert_eq!(queue.part(slot), None, "a PDU is on its way in");
        assert!(matches!(queue.next_event(&mut rest), Ok(Some(Event::Command { .. }))));
        assert_eq!(queue.part(slot), None, "another command");
    }
}
