//! PDUs of users' commands in words: the command of each, and its content.

use std::collections::BTreeMap;

use wire::pdu::{CAPSULE_CMD_BYTES, DATA_BYTES, PduType};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::IntoBytes;

use crate::timeline::{About, Timeline};

/// Bytes of a submission queue entry that a command has from its user: the namespace, and the dwords 10 to 15. The
/// queue chooses the others.
const NSID: std::ops::Range<usize> = 4..8;
const DWORDS: std::ops::Range<usize> = 40..64;

/// Commands of users that are out.
#[derive(Debug, Default)]
pub(crate) struct WireView {
    /// By lane: number and entry of each.
    open: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    /// By connection and command id.
    sent: BTreeMap<(usize, u16), u64>,
    /// By command: the line of its last data, which further data of the same direction extends.
    data: BTreeMap<u64, Data>,
}

/// Data of a command that follows each other.
#[derive(Clone, Copy, Debug)]
struct Data {
    line: usize,
    kind: PduType,
    start: u32,
    pdu_count: u32,
}

impl WireView {
    /// A command begins on a lane.
    pub(crate) fn on_submitted(&mut self, lane: usize, number: u64, sqe: &Sqe) {
        self.open.entry(lane).or_default().push((number, sqe.as_bytes().to_vec()));
    }

    /// It has ended.
    pub(crate) fn on_ended(&mut self, lane: usize, number: u64) {
        self.open.entry(lane).or_default().retain(|(open, _)| *open != number);
        self.sent.retain(|_, sent| *sent != number);
        self.data.remove(&number);
    }

    /// The header of a PDU goes over a connection that a lane has dialled.
    pub(crate) fn on_header(
        &mut self,
        timeline: &mut Timeline,
        now_ns: u64,
        (connection, lane): (usize, usize),
        header: &[u8],
    ) {
        let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let dword =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let kind = PduType::ALL.into_iter().find(|kind| *kind as u8 == header[0]);
        let (cid, text) = match kind {
            Some(PduType::CapsuleCmd) if header.len() >= CAPSULE_CMD_BYTES => {
                let entry = &header[8..CAPSULE_CMD_BYTES];
                let is_same = |sqe: &[u8]| {
                    sqe[0] == entry[0] && sqe[NSID] == entry[NSID] && sqe[DWORDS] == entry[DWORDS]
                };
                let sent: Vec<u64> = self.sent.values().copied().collect();
                let open = self.open.get(&lane).into_iter().flatten().filter(|(_, sqe)| is_same(sqe));
                let Some((number, _)) = open.min_by_key(|(number, _)| (sent.contains(number), *number))
                else {
                    return;
                };
                self.sent.insert((connection, word(10)), *number);
                let bytes = dword(4) as usize - header.len();
                let data = if bytes > 8 { format!(" with {bytes} bytes of data") } else { String::new() };
                (word(10), format!("the host sends the command{data}"))
            }
            Some(PduType::CapsuleResp) if header.len() >= 24 => {
                (word(20), format!("the target answers: {}", Status::from_wire(word(22))))
            }
            Some(kind @ (PduType::R2t | PduType::H2cData | PduType::C2hData))
                if header.len() >= DATA_BYTES =>
            {
                return self.on_data(timeline, now_ns, (connection, kind), header);
            }
            _ => return,
        };
        let Some(number) = self.sent.get(&(connection, cid)) else { return };
        let place = format!("connection {connection} cid {cid:#06x}");
        timeline.add(now_ns, place, About::Command(*number), text);
    }

    /// An R2T, H2CData or C2HData: one line for all that follow each other.
    fn on_data(
        &mut self,
        timeline: &mut Timeline,
        now_ns: u64,
        (connection, kind): (usize, PduType),
        header: &[u8],
    ) {
        let dword =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let cid = u16::from_le_bytes([header[8], header[9]]);
        let Some(&number) = self.sent.get(&(connection, cid)) else { return };
        let end = dword(12) + dword(16);
        let place = format!("connection {connection} cid {cid:#06x}");
        let new = Data { line: timeline.next(), kind, start: dword(12), pdu_count: 0 };
        let before = self.data.get(&number).filter(|before| before.kind == kind && before.start <= new.start);
        let mut data = before.copied().unwrap_or(new);
        data.pdu_count += 1;
        self.data.insert(number, data);
        let verb = match kind {
            PduType::R2t => "the target asks for",
            PduType::H2cData => "the host sends",
            _ => "the target sends",
        };
        let count = if data.pdu_count > 1 { format!("{} ", data.pdu_count) } else { String::new() };
        let last =
            if kind == PduType::C2hData && header[1] & 8 != 0 { ", and answers with success" } else { "" };
        let text = format!("{verb} bytes {} to {end} ({count}{kind:?}){last}", data.start);
        timeline.put(data.line, now_ns, place, About::Command(number), text);
    }
}
