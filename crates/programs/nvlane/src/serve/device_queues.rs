//! The queues of network devices that `nvlane adq` has given to the target's listeners: their priority for its
//! connections, and deviations.

use std::cell::LazyCell;
use std::cmp::Ordering;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use adq::config::{PrioritySource, Side, Traffic};
use adq::driver::Means;
use adq::journal::{Journal, files};
use adq::kernel::Kernel as _;
use adq::layout::PlacedClass;
use adq::linux::{LinuxDevice, receive_queues_of_napi};
use adq::verify::verify;
use linux::CoreList;
use serde::{Deserialize, Serialize};
use subsystem::config::MemcachedAddress;
use subsystem::placement_policy::PlacementPolicy;
use subsystem::server::Target;
use subsystem::socket_priority::SocketPriority;

use super::device_lanes::{arrived_lanes, lane_deviations};

/// A class of a device's layout with traffic of this target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServedClass {
    /// The network device.
    pub(crate) interface: String,
    /// The class.
    pub(crate) class: String,
    /// Its queue pairs.
    queues: u16,
    /// The priority of its packets, and who sets it.
    priority: u8,
    priority_source: PrioritySource,
    /// Deviations from the layout, with their remedies; empty if there are none.
    pub(crate) deviations: Vec<String>,
    /// The priorities that the target gives its connections, if it is the one that sets them.
    #[serde(skip)]
    priorities: Vec<SocketPriority>,
}

/// The classes that a target serves.
pub(super) struct DeviceQueues {
    /// Where the records of layouts are.
    directory: PathBuf,
    classes: Vec<ServedClass>,
}

/// The facts about a target that a layout must fit.
struct Serving {
    addresses: Vec<SocketAddr>,
    reactor_count: usize,
    placement: PlacementPolicy,
}

impl DeviceQueues {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), classes: Vec::new() }
    }

    /// Whether the target serves a class, which can fall out of line at any time.
    pub(super) fn has_any(&self) -> bool {
        !self.classes.is_empty()
    }

    pub(super) fn classes(&self) -> &[ServedClass] {
        &self.classes
    }

    /// Reads the records and the devices again, logs changes, and passes them to the target. Returns whether anything
    /// has changed.
    pub(super) fn look(&mut self, target: &Target) -> bool {
        let listeners = target.listeners().iter().map(|listener| listener.address);
        let serving = Serving {
            addresses: listeners.chain(target.memcached().iter().filter_map(MemcachedAddress::ip)).collect(),
            reactor_count: target.reactor_count(),
            placement: target.running().config.reactors.placement,
        };
        let classes = self.find(&serving, target);
        let has_changed = classes != self.classes;
        if has_changed {
            let priorities = classes.iter().flat_map(|class| class.priorities.iter().copied());
            target.set_socket_priorities(priorities.collect());
        }
        for class in classes.iter().filter(|class| !self.classes.contains(class)) {
            class.log();
        }
        for gone in self.classes.iter().filter(|before| !classes.iter().any(|class| class.is(before))) {
            let ServedClass { interface, class, .. } = gone;
            tracing::warn!(interface, class, "the layout of the device's queues was removed");
        }
        self.classes = classes;
        has_changed
    }

    /// The classes with traffic of this target.
    fn find(&self, serving: &Serving, target: &Target) -> Vec<ServedClass> {
        let mut found = Vec::new();
        let lanes = LazyCell::new(|| target.state().map(|state| arrived_lanes(&state)).unwrap_or_default());
        let files = files(&self.directory).unwrap_or_else(|error| {
            tracing::warn!(%error, directory = %self.directory.display(), "cannot read the records of nvlane adq");
            Vec::new()
        });
        for (interface, file) in files {
            let journal = match file.read() {
                Ok(Some(journal)) => journal,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, "ignoring a record of nvlane adq");
                    continue;
                }
            };
            let served = served(&journal, serving);
            if served.is_empty() {
                continue;
            }
            let mut of_device = deviations(&interface, &journal);
            if journal.plan.layout.means != Means::Software && serves_classes_only(&served, serving) {
                let queues = served.iter().flat_map(|class| class.queue_numbers()).collect();
                let of_napi = receive_queues_of_napi(&interface);
                of_device.extend(lane_deviations(&lanes, &of_napi.unwrap_or_default(), &queues));
            }
            let queues = served.iter().map(|class| class.queues.count).sum();
            for class in served {
                let mut deviations = of_target(&journal, queues, class, serving);
                deviations.extend(of_device.iter().cloned());
                found.push(ServedClass {
                    interface: interface.clone(),
                    class: class.name.clone(),
                    queues: class.queues.count,
                    priority: class.priority,
                    priority_source: class.priority_source,
                    deviations,
                    priorities: priorities_of(&journal, class),
                });
            }
        }
        found
    }
}

impl ServedClass {
    fn is(&self, other: &Self) -> bool {
        (&self.interface, &self.class) == (&other.interface, &other.class)
    }

    fn log(&self) {
        let Self { interface, class, queues, deviations, .. } = self;
        if deviations.is_empty() {
            tracing::info!(interface, class, queues, "device queues are in line with their layout");
        }
        for deviation in deviations {
            tracing::warn!(
                interface,
                class,
                queues,
                "device queues are out of line with their layout: {deviation}"
            );
        }
    }
}

/// The cores of reactors that serve the queues of a target's classes, one each: those that the layouts name, else the
/// first that are allowed. `None` without a class, or with too few cores.
pub(super) fn cores_of_layouts(
    directory: &Path,
    addresses: Vec<SocketAddr>,
    allowed: &[usize],
) -> Option<CoreList> {
    let serving = Serving { addresses, reactor_count: 0, placement: PlacementPolicy::default() };
    let journals: Vec<_> =
        files(directory).ok()?.iter().filter_map(|(_, file)| file.read().ok().flatten()).collect();
    let classes: Vec<_> = journals.iter().flat_map(|journal| served(journal, &serving)).collect();
    cores_of(&classes, allowed)
}

fn cores_of(classes: &[&PlacedClass], allowed: &[usize]) -> Option<CoreList> {
    let count: usize = classes.iter().map(|class| usize::from(class.queues.count)).sum();
    let named: Vec<usize> =
        classes.iter().flat_map(|class| &class.cores).map(|core| *core as usize).collect();
    let is_usable = named.len() == count && named.iter().all(|core| allowed.contains(core));
    let cores = if is_usable { named } else { allowed.get(..count)?.to_vec() };
    let words: Vec<_> = cores.iter().map(ToString::to_string).collect();
    // Two classes may name one core, which then has one reactor.
    words.join(",").parse().ok()
}

/// The classes of a layout with traffic of these listeners.
fn served<'a>(journal: &'a Journal, serving: &Serving) -> Vec<&'a PlacedClass> {
    if journal.plan.side != Side::Target {
        return Vec::new();
    }
    let is_served = |traffic: &Traffic| serving.addresses.iter().any(|listener| receives(*listener, traffic));
    let classes = journal.plan.layout.classes.iter();
    classes.filter(|class| class.traffic.iter().any(is_served)).collect()
}

/// Whether all listeners get traffic of these classes, so that each lane is of one.
fn serves_classes_only(classes: &[&PlacedClass], serving: &Serving) -> bool {
    let traffic = classes.iter().flat_map(|class| &class.traffic);
    serving.addresses.iter().all(|listener| traffic.clone().any(|traffic| receives(*listener, traffic)))
}

/// Whether a listener gets connections of this traffic.
fn receives(listener: SocketAddr, traffic: &Traffic) -> bool {
    let ip = listener.ip().to_canonical();
    listener.port() == traffic.port
        && (ip.is_unspecified() || traffic.address.is_none_or(|address| address.to_canonical() == ip))
}

/// Whether the target sets the priority of a class's connections. Contexts need none.
fn sets_priority(journal: &Journal, class: &PlacedClass) -> bool {
    class.priority_source == PrioritySource::Program && journal.plan.layout.means != Means::Contexts
}

/// The priorities that the target sets for a class.
fn priorities_of(journal: &Journal, class: &PlacedClass) -> Vec<SocketPriority> {
    let of =
        |&Traffic { address, port }: &Traffic| SocketPriority { address, port, priority: class.priority };
    if sets_priority(journal, class) { class.traffic.iter().map(of).collect() } else { Vec::new() }
}

/// Deviations of the target itself from a layout. `queues` are those of all classes that it serves on the device.
fn of_target(journal: &Journal, queues: u16, class: &PlacedClass, serving: &Serving) -> Vec<String> {
    let mut deviations = Vec::new();
    let reactors = serving.reactor_count;
    let effect = match reactors.cmp(&queues.into()) {
        Ordering::Less => Some("some reactors serve several queues"),
        Ordering::Greater => Some("some reactors get no connections"),
        Ordering::Equal => None,
    };
    if let Some(effect) = effect {
        deviations
            .push(format!("{queues} queues and {reactors} reactors: {effect} (--cores with {queues} cores)"));
    }
    if journal.plan.layout.means != Means::Software && serving.placement != PlacementPolicy::Napi {
        deviations.push("connections of one queue are spread over the reactors (--placement napi)".into());
    }
    if sets_priority(journal, class)
        && let Err(error) = may_set(class.priority)
    {
        let priority = class.priority;
        deviations.push(format!(
            "connections cannot get priority {priority}: {error} (CAP_NET_ADMIN, or priority = \"filter\")"
        ));
    }
    deviations
}

/// Whether this process may give a socket a priority.
fn may_set(priority: u8) -> std::io::Result<()> {
    // Any kind of socket shows it.
    linux::socket_option::set_priority(&std::os::unix::net::UnixDatagram::unbound()?, priority)
}

/// Deviations of the device from its layout.
fn deviations(interface: &str, journal: &Journal) -> Vec<String> {
    let read = || {
        let mut device = LinuxDevice::open(interface)?;
        Ok((device.device()?, device.state()?))
    };
    match read() {
        Ok((device, state)) => {
            let deviations = verify(journal, &device, &state).into_iter();
            deviations.map(|deviation| format!("{} ({})", deviation.what, deviation.remedy)).collect()
        }
        Err::<_, adq::kernel::Failure>(error) => vec![error.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_reactor_for_each_queue_of_its_classes() {
        let class = |queues: u16, cores: &[u32]| PlacedClass {
            name: "nvme".into(),
            queues: adq::netlink::qdisc::QueueRange { first: 0, count: queues },
            priority: 1,
            min_rate: None,
            max_rate: None,
            traffic: Vec::new(),
            priority_source: PrioritySource::Program,
            cores: cores.to_vec(),
            interrupt_delay: None,
        };
        let cores = |classes: &[PlacedClass]| {
            let classes: Vec<_> = classes.iter().collect();
            cores_of(&classes, &[0, 1, 2, 3, 4, 5]).map(|cores| cores.cores().to_vec())
        };
        assert_eq!(cores(&[class(2, &[3, 4])]), Some(vec![3, 4]));
        assert_eq!(cores(&[class(2, &[3, 4]), class(1, &[5])]), Some(vec![3, 4, 5]));
        // Without cores, or with one that this process may not use.
        assert_eq!(cores(&[class(3, &[])]), Some(vec![0, 1, 2]));
        assert_eq!(cores(&[class(2, &[3, 9])]), Some(vec![0, 1]));
        assert_eq!(cores(&[class(7, &[])]), None);
        assert_eq!(cores(&[]), None);
    }

    #[test]
    fn a_listener_gets_the_traffic_of_its_address_and_of_wildcards() {
        for (listener, traffic, is_received) in [
            ("192.0.2.10:4420", "192.0.2.10:4420", true),
            ("192.0.2.10:4420", "*:4420", true),
            ("0.0.0.0:4420", "192.0.2.10:4420", true),
            ("[::]:4420", "192.0.2.10:4420", true),
            ("192.0.2.11:4420", "192.0.2.10:4420", false),
            ("192.0.2.10:4421", "192.0.2.10:4420", false),
        ] {
            let traffic = traffic.parse().expect("well formed");
            assert_eq!(
                receives(listener.parse().expect("well formed"), &traffic),
                is_received,
                "{listener} {traffic}"
            );
        }
    }
}
