//! A program of sockets (`sock_ops`) that gives the connections of unmodified programs the priority of their class. A
//! control group runs it when one of its processes connects, listens or accepts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::config::{Side, Traffic};
use crate::control_group::{Group, PRIVILEGE};

/// Beginning of the names of these programs; a name has at most 15 characters.
const NAME_PREFIX: &str = "nvlane_";

/// Most rules of a program: the jump over all of them has 15 bits.
pub(crate) const RULE_COUNT_MAX: usize = 1000;

/// Events of a socket (`linux/bpf.h`): it connects, has connected, has been accepted, listens.
const EVENTS: [i32; 4] = [3, 4, 5, 11];
/// Offsets in `struct bpf_sock_ops`.
const EVENT_AT: i16 = 0;
const REMOTE_IP4_AT: i16 = 24;
const LOCAL_IP4_AT: i16 = 28;
const REMOTE_IP6_AT: i16 = 32;
const LOCAL_IP6_AT: i16 = 48;
const REMOTE_PORT_AT: i16 = 64;
const LOCAL_PORT_AT: i16 = 68;
/// Functions of the kernel.
const SET_SOCKET_OPTION: i32 = 49;
const NETWORK_COOKIE: i32 = 122;
const SOL_SOCKET: i32 = 1;
const SO_PRIORITY: i32 = 12;

/// A program, as a layout wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketProgram {
    /// Directory of the control group that it is attached to.
    pub group: String,
    /// Its name, by which it is found again; differs for each interface, network namespace and set of rules.
    pub name: String,
    /// Cookie of the network namespace whose sockets it changes.
    pub network: u64,
    /// The end of the connections that the sockets are.
    pub side: Side,
    /// The priorities.
    pub rules: Vec<SocketRule>,
}

/// The priority of the sockets of one address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRule {
    /// Address and port of the listening end.
    pub traffic: Traffic,
    /// The priority.
    pub priority: u8,
}

impl SocketProgram {
    /// The program of these rules for one interface, with its name.
    #[must_use]
    pub fn new(rules: Vec<SocketRule>, side: Side, interface: &str, group: &str, network: u64) -> Self {
        let mut program = Self { group: group.to_owned(), name: String::new(), network, side, rules };
        let mut bytes: Vec<u8> = program.instructions().iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(interface.as_bytes());
        program.name = format!("{NAME_PREFIX}{:08x}", fnv(&bytes));
        program
    }

    /// Its instructions, 8 bytes each.
    #[must_use]
    pub fn instructions(&self) -> Vec<u64> {
        let (ip4_at, ip6_at, port_at) = match self.side {
            Side::Target => (LOCAL_IP4_AT, LOCAL_IP6_AT, LOCAL_PORT_AT),
            Side::Initiator => (REMOTE_IP4_AT, REMOTE_IP6_AT, REMOTE_PORT_AT),
        };
        // Lengths of the blocks: a jump needs the distance to code that is written later.
        let blocks: Vec<Vec<u64>> = self
            .rules
            .iter()
            .map(|rule| {
                let port = match self.side {
                    Side::Target => u32::from(rule.traffic.port),
                    Side::Initiator => u32::from(rule.traffic.port).to_be(),
                };
                let mut words = vec![(port_at, port)];
                match rule.traffic.address.map(|address| address.to_canonical()) {
                    // A socket of IPv6 with a mapped address has it here too.
                    Some(IpAddr::V4(ip)) => words.push((ip4_at, u32::from_ne_bytes(ip.octets()))),
                    Some(IpAddr::V6(ip)) => {
                        let octets = ip.octets();
                        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
                        words.extend((ip6_at..).step_by(4).zip(octets.chunks_exact(4).map(word)));
                    }
                    None => {}
                }
                let length = words.len() * 2 + 2;
                let mut block = Vec::with_capacity(length);
                for (at, value) in words {
                    block.push(load_word(2, 6, at));
                    let to_next = distance(length - block.len() - 1);
                    block.push(instruction(JUMP_UNLESS_WORD, 2, 0, to_next, value.cast_signed()));
                }
                block.push(set(7, rule.priority.into()));
                block
            })
            .collect();
        // Each block ends with a jump to where the priority is set, which is not yet in it; so does the last of all.
        let rules_length: usize = blocks.iter().map(|block| block.len() + 1).sum::<usize>() + 1;
        let apply = [
            instruction(STORE_WORD, 10, 7, -4, 0),
            copy(1, 6),
            set(2, SOL_SOCKET),
            set(3, SO_PRIORITY),
            copy(4, 10),
            instruction(ADD, 4, 0, 0, -4),
            set(5, 4),
            instruction(CALL, 0, 0, 0, SET_SOCKET_OPTION),
        ];
        let [low, high] = [self.network & 0xffff_ffff, self.network >> 32]
            .map(|half| u32::try_from(half).expect("32 bits").cast_signed());
        let in_network = [
            copy(1, 6),
            instruction(CALL, 0, 0, 0, NETWORK_COOKIE),
            instruction(SET_DOUBLE, 1, 0, 0, low),
            instruction(0, 0, 0, 0, high),
            instruction(JUMP_UNLESS_EQUAL, 0, 1, distance(rules_length + apply.len()), 0),
        ];

        let mut program = vec![copy(6, 1), load_word(7, 6, EVENT_AT)];
        let (last, others) = EVENTS.split_last().expect("four");
        for (place, event) in others.iter().enumerate() {
            program.push(instruction(JUMP_IF, 7, 0, distance(others.len() - place), *event));
        }
        let to_end = in_network.len() + rules_length + apply.len();
        program.push(instruction(JUMP_UNLESS, 7, 0, distance(to_end), *last));
        program.extend(in_network);
        let mut left = rules_length;
        for block in blocks {
            left -= block.len() + 1;
            program.extend(block);
            program.push(instruction(JUMP, 0, 0, distance(left), 0));
        }
        program.push(instruction(JUMP, 0, 0, distance(apply.len()), 0));
        program.extend(apply);
        program.extend([set(0, 1), instruction(EXIT, 0, 0, 0, 0)]);
        program
    }

    /// The difference from it in the control groups that were read.
    pub(crate) fn deviation(&self, groups: &BTreeMap<String, Group>) -> Option<String> {
        let Self { group, name, .. } = self;
        match groups.get(group) {
            Some(Group::Programs(names)) if names.contains(name) => None,
            Some(Group::Programs(_)) => {
                Some(format!("the sock_ops program {name} is not attached to {group}"))
            }
            Some(Group::Hidden) => {
                Some(format!("the sock_ops programs of {group} cannot be read: it takes {PRIVILEGE}"))
            }
            Some(Group::Unusable(reason)) => {
                Some(format!("no sock_ops program is attached to {group}: {reason}"))
            }
            None => Some(format!("the sock_ops programs of {group} were not read")),
        }
    }

    /// Whether a part of it may be there.
    pub(crate) fn may_remain(&self, groups: &BTreeMap<String, Group>) -> bool {
        match groups.get(&self.group) {
            Some(Group::Programs(names)) => names.contains(&self.name),
            Some(Group::Hidden) | None => true,
            Some(Group::Unusable(_)) => false,
        }
    }
}

/// FNV-1a of 32 bits: distinguishes programs, nothing more.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Operations of instructions.
const LOAD_WORD: u8 = 0x61;
const STORE_WORD: u8 = 0x63;
const COPY: u8 = 0xbf;
const SET: u8 = 0xb7;
const SET_DOUBLE: u8 = 0x18;
const ADD: u8 = 0x07;
const JUMP: u8 = 0x05;
const JUMP_IF: u8 = 0x15;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_UNLESS_WORD: u8 = 0x56;
const JUMP_UNLESS_EQUAL: u8 = 0x5d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

fn instruction(operation: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let [o0, o1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    u64::from_ne_bytes([operation, registers, o0, o1, v0, v1, v2, v3])
}

fn load_word(to: u8, from: u8, at: i16) -> u64 {
    instruction(LOAD_WORD, to, from, at, 0)
}

fn copy(to: u8, from: u8) -> u64 {
    instruction(COPY, to, from, 0, 0)
}

fn set(to: u8, value: i32) -> u64 {
    instruction(SET, to, 0, 0, value)
}

/// A jump over this number of instructions. Classes and their traffic are few.
fn distance(count: usize) -> i16 {
    i16::try_from(count).unwrap_or(i16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(side: Side, traffic: &[(&str, u8)]) -> SocketProgram {
        let rules = traffic
            .iter()
            .map(|(traffic, priority)| SocketRule { traffic: traffic.parse().unwrap(), priority: *priority });
        SocketProgram {
            group: "/cgroup".into(),
            name: "nvlane_test".into(),
            network: 0x1_0000_0002,
            side,
            rules: rules.collect(),
        }
    }

    /// The priority that the program gives to a socket: `context` is `struct bpf_sock_ops` as the kernel fills it. As
    /// much of an interpreter as these programs need.
    fn priority_of(program: &SocketProgram, context: &[(i16, u32)], network: u64) -> Option<i32> {
        let instructions = program.instructions();
        let mut registers = [0u64; 11];
        let (mut at, mut stored, mut priority) = (0usize, 0, None);
        loop {
            let [operation, pair, o0, o1, v0, v1, v2, v3] = instructions[at].to_le_bytes();
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let offset = isize::from(i16::from_le_bytes([o0, o1]));
            let value = i32::from_le_bytes([v0, v1, v2, v3]);
            at += 1;
            let mut jump = |is_taken: bool| {
                if is_taken {
                    at = at.checked_add_signed(offset).unwrap();
                }
            };
            match operation {
                LOAD_WORD => {
                    let word = context.iter().find(|(place, _)| isize::from(*place) == offset);
                    registers[to] = word.map_or(0, |(_, word)| u64::from(*word));
                }
                STORE_WORD => stored = i32::try_from(registers[from]).unwrap(),
                COPY => registers[to] = registers[from],
                SET => registers[to] = u64::from(value.cast_unsigned()),
                ADD => {}
                SET_DOUBLE => {
                    let high = instructions[at] >> 32;
                    registers[to] = high << 32 | u64::from(value.cast_unsigned());
                    at += 1;
                }
                JUMP => jump(true),
                JUMP_IF => jump(registers[to] == u64::from(value.cast_unsigned())),
                JUMP_UNLESS => jump(registers[to] != u64::from(value.cast_unsigned())),
                JUMP_UNLESS_WORD => jump(registers[to] & 0xffff_ffff != u64::from(value.cast_unsigned())),
                JUMP_UNLESS_EQUAL => jump(registers[to] != registers[from]),
                CALL if value == NETWORK_COOKIE => registers[0] = network,
                CALL => {
                    assert_eq!((value, registers[2], registers[3], registers[5]), (49, 1, 12, 4));
                    priority = Some(stored);
                }
                EXIT => {
                    assert_eq!(registers[0], 1);
                    return priority;
                }
                other => panic!("operation {other:#x}"),
            }
        }
    }

    fn word(octets: [u8; 4]) -> u32 {
        u32::from_ne_bytes(octets)
    }

    #[test]
    fn sockets_of_a_class_get_its_priority_and_others_none() {
        let program = program(
            Side::Target,
            &[("192.0.2.10:11211", 1), ("[2001:db8::10]:11211", 2), ("*:4420", 3), ("203.0.113.255:4421", 4)],
        );
        let v4 = |event, octets, port| {
            vec![(EVENT_AT, event), (LOCAL_IP4_AT, word(octets)), (LOCAL_PORT_AT, port)]
        };
        let v6 = |last| {
            let words = [word([0x20, 1, 0x0d, 0xb8]), 0, 0, word([0, 0, 0, last])];
            let mut context = v4(5, [0; 4], 11211);
            context.extend((LOCAL_IP6_AT..).step_by(4).zip(words));
            context
        };
        let network = program.network;
        for event in [3, 4, 5, 11] {
            assert_eq!(
                priority_of(&program, &v4(event, [192, 0, 2, 10], 11211), network),
                Some(1),
                "{event}"
            );
        }
        assert_eq!(priority_of(&program, &v4(6, [192, 0, 2, 10], 11211), network), None);
        assert_eq!(priority_of(&program, &v4(5, [192, 0, 2, 10], 11211), 0x2_0000_0002), None);
        assert_eq!(priority_of(&program, &v4(5, [192, 0, 2, 11], 11211), network), None);
        assert_eq!(priority_of(&program, &v4(5, [192, 0, 2, 10], 11212), network), None);
        assert_eq!(priority_of(&program, &v4(5, [192, 0, 2, 99], 4420), network), Some(3));
        // An address whose word is negative as a signed one.
        assert_eq!(priority_of(&program, &v4(5, [203, 0, 113, 255], 4421), network), Some(4));
        assert_eq!(priority_of(&program, &v6(0x10), network), Some(2));
        assert_eq!(priority_of(&program, &v6(0x11), network), None);
    }

    #[test]
    fn an_initiator_compares_the_other_end_whose_port_is_in_network_order() {
        let program = program(Side::Initiator, &[("192.0.2.10:4420", 5)]);
        let context = |port: u32| {
            [
                (EVENT_AT, 4),
                (REMOTE_IP4_AT, word([192, 0, 2, 10])),
                (REMOTE_PORT_AT, port),
                (LOCAL_PORT_AT, 4420),
            ]
        };
        assert_eq!(priority_of(&program, &context(4420u32.to_be()), program.network), Some(5));
        assert_eq!(priority_of(&program, &context(4420), program.network), None);
    }
}
