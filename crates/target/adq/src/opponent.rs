//! Opponents of a layout, which change its device: programs, and the device's own firmware.

use std::fmt::Write as _;

/// An opponent.
#[derive(Clone, Copy, Debug)]
struct Opponent {
    /// Its name; of a program, that of its process.
    name: &'static str,
    /// Its effect on a layout.
    effect: &'static str,
    /// The command that shows it; `{}` stands for the interface.
    told_by: &'static str,
    /// The remedy.
    remedy: &'static str,
}

/// Negotiation of classes by the device itself.
pub(crate) const DCB_IN_FIRMWARE: &str = "DCB in the firmware";
/// Counts only where it manages the interface.
pub(crate) const NETWORK_MANAGER: &str = "NetworkManager";
/// Programs that count wherever they run.
pub(crate) const PROGRAMS: [&str; 3] = ["irqbalance", "lldpad", "tuned"];

const OPPONENTS: [Opponent; 5] = [
    Opponent {
        name: "irqbalance",
        effect: "moves interrupts to other processors",
        told_by: "grep . /proc/irq/*/smp_affinity_list",
        remedy: "stop it, or ban the interrupts of {} in it",
    },
    Opponent {
        name: "lldpad",
        effect: "sets classes as the switch tells it (DCB)",
        told_by: "dcb ets show dev {}",
        remedy: "stop it, or take {} out of it",
    },
    Opponent {
        name: "tuned",
        effect: "sets interrupts and ethtool's settings by its profile",
        told_by: "tuned-adm active",
        remedy: "stop it, or a profile that leaves {} alone",
    },
    Opponent {
        name: NETWORK_MANAGER,
        effect: "sets disciplines and ethtool's settings of its profile again at each activation",
        told_by: "nmcli -f tc,ethtool connection show \"$(nmcli -g GENERAL.CONNECTION device show {})\"",
        remedy: "nmcli device set {} managed no",
    },
    Opponent {
        name: DCB_IN_FIRMWARE,
        effect: "sets classes as the switch tells the device",
        told_by: "dcb dcbx show dev {}",
        remedy: "dcb dcbx set dev {} host ieee",
    },
];

/// The effect of an opponent on `interface`, and the command that shows it.
#[must_use]
pub fn effect(name: &str, interface: &str) -> String {
    let mut text = name.to_owned();
    if let Some(known) = OPPONENTS.iter().find(|known| known.name == name) {
        let told_by = known.told_by.replace("{}", interface);
        let _ = write!(text, " {} (`{told_by}` tells)", known.effect);
    }
    text
}

/// The remedy for an opponent.
#[must_use]
pub fn remedy(name: &str, interface: &str) -> String {
    let known = OPPONENTS.iter().find(|known| known.name == name);
    known.map_or_else(|| format!("stop {name}"), |known| known.remedy.replace("{}", interface))
}
