//! A host queue and a controller queue joined by two byte pipes: with any negotiated parameters and any cut of the
//! bytes, every command ends once and every byte arrives.

#![allow(clippy::cast_possible_truncation)]

mod harness;

use harness::{Link, Shape};
use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::handshake::{ControllerOffer, HostOffer};
use proptest::prelude::*;
use wire::pdu::{DataAlignment, Digests};

fn shape() -> impl Strategy<Value = Shape> {
    let alignment = || (0u8..32).prop_map(|raw| DataAlignment::from_raw(raw).expect("0..=31"));
    let handshake = (0u8..4, alignment(), alignment(), 1u32..6, 1u32..6, 0u32..300);
    let sizes = (0u32..20_000, 200u32..50_000, 1u32..50_000, any::<bool>(), 1u16..40);
    (handshake, sizes).prop_map(
        |((digests, cpda, hpda, host_r2ts, our_r2ts, h2c), (in_capsule, window, c2h, no_flow, depth))| {
            Shape {
                host: HostOffer {
                    alignment: hpda,
                    digests: Digests::from_bits_retain(digests),
                    r2t_limit: host_r2ts,
                },
                settings: QueueSettings {
                    offer: ControllerOffer {
                        alignment: cpda,
                        h2c_data_bytes_max: 4096 + h2c * 4,
                        r2t_limit: our_r2ts,
                    },
                    in_capsule_bytes: in_capsule,
                    window_bytes: window,
                    c2h_data_bytes: c2h,
                },
                is_flow_control_disabled: no_flow,
                depth,
            }
        },
    )
}

proptest! {
    #[test]
    fn every_command_ends_once_with_its_bytes(
        shape in shape(),
        seed: u64,
        commands in proptest::collection::vec((0u8..4, 1u32..60_000), 1..60),
    ) {
        let mut link = Link::new(&shape, seed);
        for (kind, length) in commands {
            link.submit(kind, length);
            link.step();
        }
        link.finish();
    }
}

#[test]
fn one_byte_at_a_time_is_enough() {
    for digests in 0..4 {
        let host = HostOffer { digests: Digests::from_bits_retain(digests), ..HostOffer::default() };
        let shape =
            Shape { host, settings: QueueSettings::default(), is_flow_control_disabled: false, depth: 4 };
        let mut link = Link::new(&shape, 1).with_cut(1);
        for kind in 0..4 {
            link.submit(kind, 9000);
        }
        link.finish();
    }
}
