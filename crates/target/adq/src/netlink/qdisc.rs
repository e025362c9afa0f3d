//! Queueing disciplines: mqprio, which divides a device's queues into classes, and clsact, which holds filters
//! (`linux/pkt_sched.h`).

use super::message::{ACK, CREATE_NEW, DUMP, Message, attributes, find, text, u16_at, u32_at, u64_at};
use super::socket::{NetlinkError, NetlinkSocket};

/// Most classes of a device: the limit of the kernel's `struct tc_mqprio_qopt`.
pub const CLASS_COUNT_MAX: usize = 16;

/// Parent of a device's root discipline.
pub const ROOT: u32 = 0xffff_ffff;
/// Parent of clsact and of ingress.
const INGRESS_PARENT: u32 = 0xffff_fff1;
/// Handle of clsact and of ingress.
const INGRESS_HANDLE: u32 = 0xffff_0000;

const NEW: u16 = 36;
const DELETE: u16 = 37;
const GET: u16 = 38;

const KIND: u16 = 1;
const OPTIONS: u16 = 2;

/// Bytes of `struct tc_mqprio_qopt`.
const MQPRIO_BYTES: usize = 82;
const MQPRIO_MODE: u16 = 1;
const MQPRIO_SHAPER: u16 = 2;
const MQPRIO_MIN_RATE: u16 = 3;
const MQPRIO_MAX_RATE: u16 = 4;
/// Mode in which the device gets the queue layout, not only the number of classes.
const MODE_CHANNEL: u16 = 1;
const SHAPER_RATES: u16 = 1;

/// One class of mqprio: a run of transmit queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QueueRange {
    /// First queue.
    pub first: u16,
    /// Number of queues.
    pub count: u16,
}

/// Where mqprio is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// In the kernel: transmit queues only, without rates.
    Software,
    /// In the device, in channel mode: queue pairs, rates where given.
    Channel,
}

/// Smallest and largest rate of one class, bytes per second; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RateRange {
    /// The minimum rate of the class.
    pub min: u64,
    /// The maximum rate of the class.
    pub max: u64,
}

/// Settings of mqprio.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mqprio {
    /// The class of each priority of a socket (its low four bits).
    pub classes_of_priorities: [u8; CLASS_COUNT_MAX],
    /// The classes, in order.
    pub queues: Vec<QueueRange>,
    /// Where it is carried out.
    pub offload: Offload,
    /// Rates of the classes, in order; empty where none has a rate.
    pub rates: Vec<RateRange>,
}

/// A queueing discipline of a device, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discipline {
    /// Its name: `mq`, `mqprio`, `clsact`, `fq_codel`.
    pub kind: String,
    /// Its handle; 0 where the kernel has created it by itself.
    pub handle: u32,
    /// Its parent: [`ROOT`], a class, or the place of clsact.
    pub parent: u32,
    /// Settings, of mqprio.
    pub mqprio: Option<Mqprio>,
}

impl Discipline {
    /// Whether filters for arriving packets can be attached here.
    #[must_use]
    pub fn holds_filters(&self) -> bool {
        matches!(self.kind.as_str(), "clsact" | "ingress")
    }
}

/// `struct tcmsg`.
pub(super) fn header(ifindex: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    for (place, value) in [ifindex, handle, parent, info].into_iter().enumerate() {
        bytes[4 + place * 4..][..4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// The request that makes mqprio the root discipline.
#[must_use]
pub fn add_mqprio(ifindex: u32, handle: u32, mqprio: &Mqprio) -> Message {
    let mut message = Message::new(NEW, ACK | CREATE_NEW, &header(ifindex, handle, ROOT, 0));
    message.text(KIND, "mqprio");
    message.content(OPTIONS, |options| {
        options.raw(&mqprio_bytes(mqprio));
        if mqprio.offload == Offload::Software {
            return; // The kernel refuses attributes without offload.
        }
        options.attribute(MQPRIO_MODE, &MODE_CHANNEL.to_ne_bytes());
        if mqprio.rates.is_empty() {
            return;
        }
        options.attribute(MQPRIO_SHAPER, &SHAPER_RATES.to_ne_bytes());
        for (kind, rate) in [(MQPRIO_MIN_RATE, min as fn(&RateRange) -> u64), (MQPRIO_MAX_RATE, max)] {
            options.nest(kind, |rates| {
                for class in 0..CLASS_COUNT_MAX {
                    rates.attribute(kind, &mqprio.rates.get(class).map_or(0, rate).to_ne_bytes());
                }
            });
        }
    });
    message
}

fn min(rates: &RateRange) -> u64 {
    rates.min
}

fn max(rates: &RateRange) -> u64 {
    rates.max
}

fn mqprio_bytes(mqprio: &Mqprio) -> [u8; MQPRIO_BYTES] {
    let mut bytes = [0; MQPRIO_BYTES];
    bytes[0] = u8::try_from(mqprio.queues.len()).expect("a layout has at most 16 classes");
    bytes[1..17].copy_from_slice(&mqprio.classes_of_priorities);
    bytes[17] = u8::from(mqprio.offload == Offload::Channel);
    for (class, queues) in mqprio.queues.iter().enumerate() {
        bytes[18 + class * 2..][..2].copy_from_slice(&queues.count.to_ne_bytes());
        bytes[50 + class * 2..][..2].copy_from_slice(&queues.first.to_ne_bytes());
    }
    bytes
}

fn read_mqprio(options: &[u8]) -> Option<Mqprio> {
    let fixed = options.get(..MQPRIO_BYTES)?;
    let class_count = usize::from(fixed[0]).min(CLASS_COUNT_MAX);
    let queues = (0..class_count)
        .filter_map(|class| {
            Some(QueueRange { count: u16_at(fixed, 18 + class * 2)?, first: u16_at(fixed, 50 + class * 2)? })
        })
        .collect();
    let rest = options.get(MQPRIO_BYTES.next_multiple_of(4)..).unwrap_or_default();
    let rates_of = |kind: u16| -> Vec<u64> {
        find(rest, kind)
            .map(|nest| {
                attributes(nest).filter_map(|(_, value)| u64_at(value, 0)).take(class_count).collect()
            })
            .unwrap_or_default()
    };
    let (min, max) = (rates_of(MQPRIO_MIN_RATE), rates_of(MQPRIO_MAX_RATE));
    let rate = |rates: &[u64], class: usize| rates.get(class).copied().unwrap_or(0);
    let rates = (0..min.len().max(max.len()))
        .map(|class| RateRange { min: rate(&min, class), max: rate(&max, class) })
        .collect();
    Some(Mqprio {
        classes_of_priorities: fixed[1..17].try_into().ok()?,
        queues,
        offload: if fixed[17] == 0 { Offload::Software } else { Offload::Channel },
        rates,
    })
}

/// The request that deletes a device's root discipline; the kernel then installs its default.
#[must_use]
pub fn delete_root(ifindex: u32) -> Message {
    Message::new(DELETE, ACK, &header(ifindex, 0, ROOT, 0))
}

/// The request that adds clsact.
#[must_use]
pub fn add_clsact(ifindex: u32) -> Message {
    let mut message =
        Message::new(NEW, ACK | CREATE_NEW, &header(ifindex, INGRESS_HANDLE, INGRESS_PARENT, 0));
    message.text(KIND, "clsact");
    message
}

/// The request that deletes clsact, with all filters in it.
#[must_use]
pub fn delete_clsact(ifindex: u32) -> Message {
    let mut message = Message::new(DELETE, ACK, &header(ifindex, INGRESS_HANDLE, INGRESS_PARENT, 0));
    message.text(KIND, "clsact");
    message
}

/// The disciplines of a device.
///
/// # Errors
/// Those of [`NetlinkSocket::request`].
pub fn list(socket: &mut NetlinkSocket, ifindex: u32) -> Result<Vec<Discipline>, NetlinkError> {
    let mut disciplines = Vec::new();
    socket.request(Message::new(GET, DUMP, &header(ifindex, 0, 0, 0)), |body| {
        disciplines
            .extend(read(body).filter(|(found, _)| *found == ifindex).map(|(_, discipline)| discipline));
    })?;
    Ok(disciplines)
}

fn read(body: &[u8]) -> Option<(u32, Discipline)> {
    let rest = body.get(20..)?;
    let kind = text(find(rest, KIND)?);
    let mqprio = if kind == "mqprio" { find(rest, OPTIONS).and_then(read_mqprio) } else { None };
    let discipline = Discipline { kind, handle: u32_at(body, 8)?, parent: u32_at(body, 12)?, mqprio };
    Some((u32_at(body, 4)?, discipline))
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::*;

    const GBIT: u64 = 1_000_000_000 / 8;

    fn mqprio(class_queues: &[(u16, u16)], offload: Offload, rates: &[(u64, u64)]) -> Mqprio {
        let mut classes_of_priorities = [0; 16];
        for (number, class) in (0..).zip(&mut classes_of_priorities[..class_queues.len()]) {
            *class = number;
        }
        Mqprio {
            classes_of_priorities,
            queues: class_queues
                .iter()
                .map(|(count, first)| QueueRange { first: *first, count: *count })
                .collect(),
            offload,
            rates: rates.iter().map(|(min, max)| RateRange { min: *min, max: *max }).collect(),
        }
    }

    /// Compares a message with the bytes that `tc` sends for the same settings.
    fn assert_golden(message: Message, golden: &str) {
        let golden: Vec<u8> = (0..golden.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&golden[at..at + 2], 16).unwrap())
            .collect();
        assert_eq!(message.finish(0), golden);
    }

    #[test]
    fn mqprio_with_rates_is_what_tc_sends() {
        let settings = mqprio(
            &[(2, 0), (4, 2), (2, 6)],
            Offload::Channel,
            &[(0, 0), (GBIT, 10 * GBIT), (GBIT / 2, 2 * GBIT)],
        );
        let message = add_mqprio(2, 0x8001_0000, &settings);
        let bytes = message.clone().finish(0);
        let body = messages(&bytes).next().unwrap().body;
        assert_eq!(
            read(body),
            Some((
                2,
                Discipline {
                    kind: "mqprio".into(),
                    handle: 0x8001_0000,
                    parent: ROOT,
                    mqprio: Some(settings)
                }
            ))
        );
        assert_golden(
            message,
            concat!(
                "20020000240005060000000000000000000000000200000000000180ffffffff",
                "000000000b0001006d717072696f0000f0010200030001020000000000000000",
                "0000000000010200040002000000000000000000000000000000000000000000",
                "0000000000000000020006000000000000000000000000000000000000000000",
                "000000000000000006000100010000000600020001000000c40003800c000300",
                "00000000000000000c00030040597307000000000c000300a0acb90300000000",
                "0c00030000000000000000000c00030000000000000000000c00030000000000",
                "000000000c00030000000000000000000c00030000000000000000000c000300",
                "00000000000000000c00030000000000000000000c0003000000000000000000",
                "0c00030000000000000000000c00030000000000000000000c00030000000000",
                "000000000c00030000000000000000000c0003000000000000000000c4000480",
                "0c00040000000000000000000c000400807c814a000000000c00040080b2e60e",
                "000000000c00040000000000000000000c00040000000000000000000c000400",
                "00000000000000000c00040000000000000000000c0004000000000000000000",
                "0c00040000000000000000000c00040000000000000000000c00040000000000",
                "000000000c00040000000000000000000c00040000000000000000000c000400",
                "00000000000000000c00040000000000000000000c0004000000000000000000",
            ),
        );
    }

    #[test]
    fn mqprio_without_rates_and_without_offload_is_what_tc_sends() {
        let queues = [(4, 0), (4, 4)];
        assert_golden(
            add_mqprio(2, 0x8001_0000, &mqprio(&queues, Offload::Channel, &[])),
            concat!(
                "90000000240005060000000000000000000000000200000000000180ffffffff",
                "000000000b0001006d717072696f000060000200020001000000000000000000",
                "0000000000010400040000000000000000000000000000000000000000000000",
                "0000000000000000040000000000000000000000000000000000000000000000",
                "00000000000000000600010001000000",
            ),
        );
        assert_golden(
            add_mqprio(2, 0x8001_0000, &mqprio(&queues, Offload::Software, &[])),
            concat!(
                "88000000240005060000000000000000000000000200000000000180ffffffff",
                "000000000b0001006d717072696f000058000200020001000000000000000000",
                "0000000000000400040000000000000000000000000000000000000000000000",
                "0000000000000000040000000000000000000000000000000000000000000000",
                "0000000000000000",
            ),
        );
    }

    #[test]
    fn clsact_and_the_deletion_of_the_root_are_what_tc_sends() {
        assert_golden(
            add_clsact(2),
            concat!(
                "3000000024000506000000000000000000000000020000000000fffff1ffffff",
                "000000000b000100636c736163740000",
            ),
        );
        assert_golden(
            delete_root(2),
            concat!("24000000250005000000000000000000000000000200000000000000ffffffff", "00000000"),
        );
    }
}
