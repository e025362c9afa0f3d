//! A program of sockets in this machine's kernel gives the connections of a server that knows nothing of it their
//! priority. Needs root, and a control group hierarchy of version 2.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use linux::socket_option::priority;
use nvlane_adq::change::Change;
use nvlane_adq::config::Side;
use nvlane_adq::control_group::{Group, topmost_group};
use nvlane_adq::kernel::Kernel as _;
use nvlane_adq::linux::LinuxDevice;
use nvlane_adq::sock_ops::{SocketProgram, SocketRule};

/// A control group with this process in it; both are as before on drop.
struct OwnGroup {
    directory: PathBuf,
    /// Where this process was.
    origin: PathBuf,
}

impl OwnGroup {
    /// `None` if it cannot be made, which is printed.
    fn new() -> Option<Self> {
        let Some(topmost) = topmost_group() else {
            eprintln!("skipped: no control groups of version 2");
            return None;
        };
        let topmost = Path::new(&topmost);
        let own = fs::read_to_string("/proc/self/cgroup").expect("this process is in control groups");
        let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let group = Self {
            directory: topmost.join(format!("nvlane-test-{}", std::process::id())),
            origin: topmost.join(path),
        };
        if let Err(error) = fs::create_dir(&group.directory) {
            eprintln!("skipped: {}: {error}", group.directory.display());
            return None;
        }
        if let Err(error) = enter(&group.directory) {
            eprintln!("skipped: {}: {error}", group.directory.display());
            return None;
        }
        Some(group)
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let _ = enter(&self.origin);
        let _ = fs::remove_dir(&self.directory);
    }
}

fn enter(directory: &Path) -> std::io::Result<()> {
    fs::write(directory.join("cgroup.procs"), std::process::id().to_string())
}

/// A port that is free now.
fn free_port() -> u16 {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap().local_addr().unwrap().port()
}

/// Priorities of the listener, of the connection that it accepts, and of the connecting end.
fn priorities(listen: SocketAddr, connect: SocketAddr) -> (u8, u8, u8) {
    let listener = TcpListener::bind(listen).unwrap();
    let near = TcpStream::connect(connect).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (priority(&listener).unwrap(), priority(&accepted).unwrap(), priority(&near).unwrap())
}

#[test]
fn sockets_that_a_server_accepts_have_the_priority_of_their_class() {
    let Some(group) = OwnGroup::new() else { return };
    let name_of_group = group.directory.display().to_string();
    let mut device = LinuxDevice::open("lo").unwrap();
    device.look_into([name_of_group.clone()]);
    let before = device.state().unwrap();
    if before.groups[&name_of_group] == Group::Hidden {
        return eprintln!("skipped: this process may not read programs");
    }
    assert_eq!(before.groups[&name_of_group], Group::Programs(vec![]));

    let [own, of_any, other] = [free_port(), free_port(), free_port()];
    let network = device.device().unwrap().network;
    let rule = |traffic: String, priority| SocketRule { traffic: traffic.parse().unwrap(), priority };
    let of = |side, name: &str, rules| SocketProgram {
        group: name_of_group.clone(),
        name: name.into(),
        network,
        side,
        rules,
    };
    let rules = vec![
        rule(format!("127.0.0.1:{own}"), 3),
        rule(format!("[::1]:{own}"), 4),
        // Above what a process without privilege may set.
        rule(format!("*:{of_any}"), 9),
    ];
    let program = of(Side::Target, "nvlane_test", rules);
    let attach = Change::AttachProgram(program.clone());
    device.carry_out(&attach).unwrap();
    let attached = device.state().unwrap();
    assert_eq!(attach.deviation(&attached), None);

    let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let v6 = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let any = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    assert_eq!(priorities(v4(own), v4(own)), (3, 3, 0));
    assert_eq!(priorities(v6(own), v6(own)), (4, 4, 0));
    // A listener of all addresses: each connection is told by its own, also one of IPv4 on a socket of IPv6.
    assert_eq!(priorities(any(own), v4(own)), (0, 3, 0));
    assert_eq!(priorities(any(own), v6(own)), (0, 4, 0));
    assert_eq!(priorities(any(of_any), v4(of_any)), (9, 9, 0));
    assert_eq!(priorities(any(other), v4(other)), (0, 0, 0));

    // The connecting end, beside the program of before.
    let connecting = of(Side::Initiator, "nvlane_test2", vec![rule(format!("127.0.0.1:{own}"), 5)]);
    device.carry_out(&Change::AttachProgram(connecting.clone())).unwrap();
    assert_eq!(priorities(v4(own), v4(own)), (3, 3, 5));

    // A program for another network namespace does nothing here.
    let elsewhere = SocketProgram {
        network: network ^ 1,
        ..of(Side::Target, "nvlane_test3", vec![rule(format!("*:{other}"), 6)])
    };
    device.carry_out(&Change::AttachProgram(elsewhere.clone())).unwrap();
    assert_eq!(priorities(v4(other), v4(other)), (0, 0, 0));

    for program in [program, connecting, elsewhere] {
        let undo = Change::AttachProgram(program.clone()).undo(&before, &device.state().unwrap());
        assert_eq!(undo, [Change::DetachProgram(program)]);
        device.carry_out(&undo[0]).unwrap();
    }
    assert_eq!(device.state().unwrap(), before);
    assert!(attach.deviation(&before).unwrap().contains("is not attached"));
    assert_eq!(priorities(v4(own), v4(own)), (0, 0, 0));
}
