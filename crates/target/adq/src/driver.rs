//! The abilities of each driver, and its rules for a layout, from the drivers' sources.

use crate::rate::Rate;

/// How a device separates classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// mqprio in channel mode and filters with a class: receive and transmit queues.
    Channel,
    /// RSS contexts and rules that steer to them: receive queues; transmit queues follow by XPS.
    Contexts,
    /// mqprio in the kernel: transmit queues only.
    Software,
}

/// The numbers of queues that a driver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueCounts {
    /// Powers of two; one other number is possible if it is the largest.
    PowersOfTwoAndLargest,
    /// Powers of two.
    PowersOfTwo,
    /// Any.
    Any,
}

/// The rates that a driver takes.
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
    /// The numbers of queues that it takes.
    pub queue_counts: QueueCounts,
    /// The rates that it takes.
    pub rates: Rates,
    /// Private flags that must have a value first, where the driver has them: the flag, its value, the reason.
    pub private_flags: &'static [(&'static str, bool, &'static str)],
    /// Filters are numbered by their preferences, from 1, and each needs its own.
    pub has_preference_per_filter: bool,
    /// Classes and n-tuple rules exclude each other.
    pub excludes_rules: bool,
    /// Contexts can be made only while the interface is up.
    pub needs_up: bool,
    /// A rule needs the address of its traffic, not only the port.
    pub needs_address: bool,
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

/// Rules of `driver`, which has contexts with this kernel or not; those of a driver without offload if it is not known
/// to have one. A driver that has contexts and is not in the table gets them without bounds of its own.
#[must_use]
pub fn rules(driver: &str, has_contexts: bool) -> Rules {
    let software = Rules {
        means: Means::Software,
        class_count_max: 16,
        queue_counts: QueueCounts::Any,
        rates: Rates::None,
        private_flags: &[],
        has_preference_per_filter: false,
        excludes_rules: false,
        needs_up: false,
        needs_address: false,
    };
    let channel = Rules { means: Means::Channel, ..software };
    let contexts = Rules { means: if has_contexts { Means::Contexts } else { Means::Software }, ..software };
    match driver {
        "ice" => Rules {
            queue_counts: QueueCounts::PowersOfTwoAndLargest,
            rates: Rates::MinAndMax(Rate::from_bits(HALF_MBIT)),
            private_flags: &[LLDP, INSPECTION],
            ..channel
        },
        "i40e" => Rules {
            class_count_max: 8,
            rates: Rates::Max(Rate::from_bits(50 * MBIT)),
            excludes_rules: true,
            ..channel
        },
        "iavf" => Rules { class_count_max: 4, rates: Rates::Max(Rate::from_bits(MBIT)), ..channel },
        "hns3" => Rules {
            class_count_max: 8,
            queue_counts: QueueCounts::PowersOfTwo,
            has_preference_per_filter: true,
            excludes_rules: true,
            ..channel
        },
        // Its mqprio offload has queues of its own for rates, one connection each: no queue pairs.
        "cxgb4" => software,
        "bnxt_en" => Rules { needs_up: true, ..contexts },
        "sfc" => Rules { needs_address: true, ..contexts },
        "rvu_nicpf" | "mvpp2" if has_contexts => Rules { class_count_max: 8, ..contexts },
        "fbnic" if has_contexts => Rules { class_count_max: 2, ..contexts },
        // mlx5_core has 16, as many as classes can be named.
        _ => contexts,
    }
}
