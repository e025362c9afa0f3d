//! The network device of a study server: its counters, and the settings that a study may make on it for a target.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::protocol::SteeringInterface;
use super::settings::{Event, ServerSettings};
use crate::counters::Counters;
use crate::error::Error;
use crate::local_target::LocalTarget;
use crate::steering::{Setting, SteeredDevice, Steering, device_of, has_arfs, interface_with};

/// Time for a target to look at a layout.
const LOOK_TIME: Duration = Duration::from_secs(5);

const NOT_ALLOWED: &str =
    "the operator of this server allows no change of an interface (nvlane study serve --interface)";

/// The device of the interface with the targets' address.
pub(super) struct Device<'a> {
    settings: &'a ServerSettings,
    data_address: IpAddr,
    /// In sysfs, if it is not virtual.
    place: Option<PathBuf>,
    /// The setting on it, and the target that it is for.
    steered: Option<(u32, Setting)>,
    on_event: &'a (dyn Fn(Event) + Sync),
}

/// Checks that studies can have queues of the interface that the settings name, if they name one.
pub(super) fn check(settings: &ServerSettings) -> Result<(), Error> {
    let Some(interface) = &settings.interface else { return Ok(()) };
    let wrong = |reason: String| Error::Lacking(format!("--interface {interface}: {reason}"));
    let listen = settings.listen.ip();
    let address = settings.data_address.or((!listen.is_unspecified()).then_some(listen));
    let address = address.ok_or_else(|| {
        wrong("which address targets have is not known: --listen or --data-address has to name it".into())
    })?;
    match interface_with(address) {
        Some(found) if found == *interface => {}
        Some(other) => {
            return Err(wrong(format!("targets have the address {address}, and that is of {other}")));
        }
        None => {
            return Err(wrong(format!(
                "targets have the address {address}, and no interface has it (or `ip` of iproute2 is missing)"
            )));
        }
    }
    steered(settings, interface)
        .check_layout(address, first_core(settings))
        .map_err(|error| wrong(error.to_string()))
}

fn steered<'a>(settings: &'a ServerSettings, interface: &'a str) -> SteeredDevice<'a> {
    SteeredDevice { interface, program: &settings.program, launcher: &[], record: None }
}

fn first_core(settings: &ServerSettings) -> Option<usize> {
    settings.cores.cores().first().copied()
}

impl<'a> Device<'a> {
    /// The device for targets with this address.
    pub(super) fn new(
        settings: &'a ServerSettings,
        data_address: IpAddr,
        on_event: &'a (dyn Fn(Event) + Sync),
    ) -> Self {
        let place = interface_with(data_address).and_then(|interface| device_of(&interface));
        Self { settings, data_address, place, steered: None, on_event }
    }

    /// The steering that a study may use on it.
    pub(super) fn steering(&self) -> Option<SteeringInterface> {
        let interface = self.settings.interface.clone()?;
        Some(SteeringInterface { has_arfs: has_arfs(&interface), interface })
    }

    /// Counters of a target's process and of the device.
    pub(super) fn counters(&self, target: &LocalTarget) -> Result<Counters, String> {
        Counters::read(target.pid(), self.place.as_deref()).map_err(|error| error.to_string())
    }

    /// Steers the traffic of a target until it ends. Returns the means by which queues are separated.
    pub(super) fn steer(
        &mut self,
        number: u32,
        target: &LocalTarget,
        by: Steering,
    ) -> Result<String, String> {
        let interface = self.interface()?;
        if let Some((other, _)) = &self.steered {
            return Err(format!("the queues of {interface} are set for target {other} already"));
        }
        let device = steered(self.settings, interface);
        let (setting, means) = match by {
            Steering::OwnQueues => {
                let own = || SocketAddr::new(self.data_address, target.address().port());
                let listener = target.memcached.unwrap_or_else(own);
                let (setting, means) = device
                    .apply_layout(listener, first_core(self.settings))
                    .map_err(|error| error.to_string())?;
                // Dropped on failure, which takes the layout back.
                take_up(target, interface)?;
                (setting, means)
            }
            Steering::Arfs => {
                let setting = device.turn_on_arfs().map_err(|error| error.to_string())?;
                (setting, "arfs".to_owned())
            }
        };
        self.steered = Some((number, setting));
        let how = if by == Steering::Arfs { "aRFS" } else { "a layout of nvlane adq" };
        (self.on_event)(Event::Set(interface.to_owned(), how));
        Ok(means)
    }

    /// The interface that a study may set.
    fn interface(&self) -> Result<&'a str, String> {
        self.settings.interface.as_deref().ok_or_else(|| NOT_ALLOWED.to_owned())
    }

    /// Takes back the setting for a target that has ended.
    pub(super) fn release(&mut self, number: u32) {
        if self.steered.as_ref().is_some_and(|(of, _)| *of == number) {
            self.take_back();
        }
    }

    fn take_back(&mut self) {
        if let (Some((_, setting)), Ok(interface)) = (self.steered.take(), self.interface()) {
            let is_as_before = setting.take_back();
            (self.on_event)(Event::TakenBack(interface.to_owned(), is_as_before));
        }
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Makes a running target read the record of the layout, whose priority it then gives to its connections, and checks
/// that there is no deviation from it.
fn take_up(target: &LocalTarget, interface: &str) -> Result<(), String> {
    let pid = i32::try_from(target.pid()).ok().and_then(Pid::from_raw).ok_or("no process")?;
    kill_process(pid, Signal::HUP).map_err(|error| format!("the target: {error}"))?;
    let end = Instant::now() + LOOK_TIME;
    loop {
        let state = target.state().map_err(|error| error.to_string())?;
        if let Some(deviations) = deviations(&state, interface) {
            return match deviations.as_slice() {
                [] => Ok(()),
                some => Err(format!("the queues of {interface} are out of line: {}", some.join("; "))),
            };
        }
        if Instant::now() >= end {
            return Err(format!("the target does not see the layout of {interface}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Deviations from the layout of an interface, in the state of a target that has a class of it.
fn deviations(state: &Value, interface: &str) -> Option<Vec<String>> {
    let class = state["adq"].as_array()?.iter().find(|class| class["interface"] == interface)?;
    let deviations = class["deviations"].as_array()?.iter();
    Some(deviations.filter_map(|text| text.as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_target_tells_what_is_out_of_line() {
        let of = |adq: Value| deviations(&json!({ "adq": adq }), "eth1");
        assert_eq!(of(json!([{ "interface": "eth0", "deviations": [] }])), None);
        assert_eq!(of(json!([{ "interface": "eth1", "deviations": [] }])), Some(Vec::new()));
        let both = json!([{ "interface": "eth1", "deviations": ["a", "b"] }]);
        assert_eq!(of(both), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(of(Value::Null), None);
    }

    fn settings(interface: &str, listen: &str) -> ServerSettings {
        ServerSettings {
            program: "/no/such".into(),
            listen: listen.parse().unwrap(),
            data_address: None,
            data_ports: None,
            cores: "0".parse().unwrap(),
            interface: Some(interface.to_owned()),
            token: "0123456789abcdef".parse().unwrap(),
        }
    }

    #[test]
    fn an_interface_has_to_have_the_address_of_the_targets() {
        let refused = |interface, listen| check(&settings(interface, listen)).unwrap_err().to_string();
        let unknown = refused("eth7", "0.0.0.0:4421");
        assert!(
            unknown.starts_with("--interface eth7: which address targets have is not known"),
            "{unknown}"
        );
        // 192.0.2.0/24 is for documents.
        let strange = refused("eth7", "192.0.2.7:4421");
        assert!(strange.contains("targets have the address 192.0.2.7, and no interface has it"), "{strange}");
        assert!(check(&ServerSettings { interface: None, ..settings("", "0.0.0.0:4421") }).is_ok());
    }

    #[test]
    fn without_an_interface_nothing_is_set() {
        let settings = ServerSettings { interface: None, ..settings("", "127.0.0.1:4421") };
        let mut device = Device::new(&settings, [127, 0, 0, 1].into(), &|_| panic!("nothing is set"));
        assert_eq!(device.steering(), None);
        assert_eq!(device.interface().unwrap_err(), NOT_ALLOWED);
        device.release(1);
    }
}
