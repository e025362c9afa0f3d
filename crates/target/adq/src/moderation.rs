//! Interrupt moderation: how long a queue waits for more packets before it interrupts.

use serde::{Deserialize, Serialize};

/// The delay of one direction.
#[derive(Clone, Copy, Debug, Default, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// Longest wait, µs.
    pub us: u32,
    /// The driver chooses the wait by the arriving packets; `us` is then its start.
    pub is_adaptive: bool,
}

impl PartialEq for Delay {
    /// Two adaptive delays are one setting, wherever the driver has come with them.
    fn eq(&self, other: &Self) -> bool {
        self.is_adaptive == other.is_adaptive && (self.is_adaptive || self.us == other.us)
    }
}

/// Moderation of a queue pair, or of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moderation {
    /// After a packet has arrived.
    pub receive: Delay,
    /// After a packet was sent.
    pub transmit: Delay,
}

/// Moderation of a device as its driver shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moderations {
    /// The driver has none.
    #[default]
    None,
    /// One for all queues.
    Device(Moderation),
    /// One for each queue, in order.
    Queues(Vec<Moderation>),
}

impl Moderations {
    /// The moderation of a queue.
    #[must_use]
    pub fn of(&self, queue: u16) -> Option<Moderation> {
        match self {
            Self::None => None,
            Self::Device(moderation) => Some(*moderation),
            Self::Queues(queues) => queues.get(usize::from(queue)).copied(),
        }
    }
}

impl std::fmt::Display for Delay {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_adaptive { formatter.write_str("adaptive") } else { write!(formatter, "{} µs", self.us) }
    }
}

impl std::fmt::Display for Moderation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} (receive) and {} (transmit)", self.receive, self.transmit)
    }
}

/// The difference from a moderation of `queue`, or of the device.
pub(crate) fn deviation(queue: Option<u16>, wanted: Moderation, now: &Moderations) -> Option<String> {
    let subject = queue.map_or_else(|| "the device".to_owned(), |queue| format!("queue {queue}"));
    match now.of(queue.unwrap_or(0)) {
        None => Some(format!("{subject} has no interrupt moderation")),
        Some(now) if now != wanted => {
            Some(format!("{subject} delays interrupts by {now} instead of {wanted}"))
        }
        Some(_) => None,
    }
}

/// The moderation of before, if it is another one now.
pub(crate) fn undo(queue: Option<u16>, before: &Moderations, now: &Moderations) -> Option<Moderation> {
    let queue = queue.unwrap_or(0);
    let (before, now) = (before.of(queue)?, now.of(queue)?);
    (before != now).then_some(before)
}

/// The command of `ethtool`.
pub(crate) fn command(queue: Option<u16>, wanted: Moderation, interface: &str) -> String {
    let words = |name: &str, delay: Delay| match delay.is_adaptive {
        true => format!(" adaptive-{name} on"),
        false => format!(" adaptive-{name} off {name}-usecs {}", delay.us),
    };
    let settings = words("rx", wanted.receive) + &words("tx", wanted.transmit);
    match queue {
        Some(queue) => {
            // One bit, in hexadecimal: bit 4n has the digit 1 and n zeros.
            let digit = 1u8 << (queue % 4);
            let mask = format!("{digit:x}{}", "0".repeat(usize::from(queue / 4)));
            format!("ethtool --per-queue {interface} queue_mask 0x{mask} --coalesce{settings}")
        }
        None => format!("ethtool -C {interface}{settings}"),
    }
}
