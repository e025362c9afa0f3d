//! A target that says the wrong thing: planted bugs that show in its PDUs.

use crate::planted::Planted;
use crate::random::Random;

const CAPSULE_RESP: u8 = 0x05;
const R2T: u8 = 0x09;

/// The result of an Asynchronous Event Request that reports a change of the discovery log: a notice of it, and the
/// page. wire §13
const DISCOVERY_CHANGED: [u8; 4] = [0x02, 0xf0, 0x70, 0x00];

/// What goes through, cut into PDUs.
#[derive(Debug, Default)]
pub(crate) struct Tamper {
    /// An incomplete PDU.
    pending: Vec<u8>,
    /// A completion that waits for another one.
    held: Option<Vec<u8>>,
}

impl Tamper {
    /// Lets bytes of a target through, changed as the bug wants it. Digests must be off.
    pub(crate) fn pass(&mut self, bug: Option<Planted>, bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
        let bugs = [
            Planted::WrongR2tOffset,
            Planted::SwappedCompletions,
            Planted::AbortAfterCompletion,
            Planted::LostDiscoveryEvent,
        ];
        let Some(bug) = bug.filter(|bug| bugs.contains(bug)) else { return bytes };
        self.pending.extend(bytes);
        let mut out = Vec::new();
        while self.pending.len() >= 8 {
            let length = u32::from_le_bytes(self.pending[4..8].try_into().expect("4 bytes")) as usize;
            if length < 8 || self.pending.len() < length {
                break;
            }
            let mut pdu: Vec<u8> = self.pending.drain(..length).collect();
            match (bug, pdu[0]) {
                (Planted::WrongR2tOffset, R2T) if random.one_in(4) => {
                    let offset = u32::from_le_bytes(pdu[12..16].try_into().expect("4 bytes"));
                    pdu[12..16].copy_from_slice(&(offset + 512).to_le_bytes());
                }
                (Planted::AbortAfterCompletion, CAPSULE_RESP) if random.one_in(16) => {
                    // A success without result: a write, most likely.
                    let is_plain =
                        pdu[8..16].iter().all(|byte| *byte == 0) && pdu[22] >> 1 == 0 && pdu[23] == 0;
                    if is_plain {
                        pdu[22] = 7 << 1;
                    }
                }
                (Planted::LostDiscoveryEvent, CAPSULE_RESP)
                    if pdu.get(8..12) == Some(&DISCOVERY_CHANGED) && random.one_in(2) =>
                {
                    continue;
                }
                (Planted::SwappedCompletions, CAPSULE_RESP) => {
                    if let Some(mut held) = self.held.take() {
                        let (a, b) = (held[20..22].to_vec(), pdu[20..22].to_vec());
                        held[20..22].copy_from_slice(&b);
                        pdu[20..22].copy_from_slice(&a);
                        out.extend(held);
                    } else if random.one_in(8) {
                        self.held = Some(pdu);
                        continue;
                    }
                }
                _ => {}
            }
            out.extend(pdu);
        }
        out
    }
}
