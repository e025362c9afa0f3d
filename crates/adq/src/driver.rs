//! What each driver can do, and its rules for a layout, from the drivers' sources.

use crate::rate::Rate;

/// How a device separates classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// mqprio in channel mode and filters with a class: receive and transmit queues.
    Channel,
    /// mqprio in the kernel: transmit queues only.
    Software,
}

/// Which numbers of queues a driver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueCounts {
    /// Powers of two; one other number is possible if it is the largest.
    PowersOfTwo,
    /// Any.
    Any,
}

/// Which rates a driver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rates {
    /// None.
    None,
    /// Maximum rates of a multiple of this.
    Max(Rate),
    /// Minimum and maximum rates of a multiple of this.
    MinAndMax(Rate),
}

/// The rules of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How its devices separate classes.
    pub means: Means,
    /// Most classes, with the one for other traffic.
    pub class_count_max: usize,
    /// Which numbers of queues it takes.
    pub queue_counts: QueueCounts,
    /// Which rates it takes.
    pub rates: Rates,
    /// Private flags that must have a value first, where the driver has them: the flag, its value, the reason.
    pub private_flags: &'static [(&'static str, bool, &'static str)],
}

const LLDP: (&str, bool, &str) =
    ("fw-lldp-agent", false, "the firmware's LLDP agent would change the classes as the switch tells it");
const INSPECTION: (&str, bool, &str) = (
    "channel-pkt-inspect-optimize",
    false,
    "the driver would guess from packets when to poll, while the reactors poll anyway",
);

const HALF_MBIT: u64 = 500_000;
const MBIT: u64 = 1_000_000;

/// Rules of `driver`; those of a driver without offload if it is not known to have one.
#[must_use]
pub fn rules(driver: &str) -> Rules {
    let software = Rules {
        means: Means::Software,
        class_count_max: 16,
        queue_counts: QueueCounts::Any,
        rates: Rates::None,
        private_flags: &[],
    };
    let channel = Rules { means: Means::Channel, ..software };
    match driver {
        "ice" => Rules {
            queue_counts: QueueCounts::PowersOfTwo,
            rates: Rates::MinAndMax(Rate::from_bits(HALF_MBIT)),
            private_flags: &[LLDP, INSPECTION],
            ..channel
        },
        "i40e" => Rules { class_count_max: 8, rates: Rates::Max(Rate::from_bits(50 * MBIT)), ..channel },
        "iavf" => Rules { class_count_max: 4, rates: Rates::Max(Rate::from_bits(MBIT)), ..channel },
        _ => software,
    }
}
