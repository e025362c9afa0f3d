//! nvlane host and nvlane target with every combination of negotiated options: the data is right.

use host::{Association, Options, Receive};
use linux::random::SplitMix64;
use proptest::prelude::*;
use reactor::EngineKind;
use subsystem::config::TargetConfig;
use wire::pdu::{DataAlignment, Digests};

use crate::exercise::{Load, Model};
use crate::setup::{Rig, engines, options};

/// Options of the target's end of a connection.
#[derive(Clone, Copy, Debug)]
struct Offer {
    h2c_data: u32,
    in_capsule: u32,
    window: u32,
    windows: u8,
    cpda: u8,
    in_place: usize,
    receive: Receive,
}

/// Options of the host's end.
#[derive(Clone, Copy, Debug)]
struct Wish {
    digests: u8,
    hpda: u8,
    r2t_limit: u32,
    flow_control: bool,
    lanes: u16,
    depth: u16,
    in_capsule: u32,
    in_place: u32,
    receive: Receive,
}

/// Receive modes; most lanes use the first.
const RECEIVES: [Receive; 3] = [Receive::Staging, Receive::Staging, Receive::Pdu];

impl Offer {
    fn rig(self, engine: EngineKind, storage: &[&str]) -> Rig {
        Rig::with(engine, storage, |config: &mut TargetConfig| {
            let limits = &mut config.limits;
            (limits.h2c_data_bytes_max, limits.in_capsule_bytes) = (self.h2c_data, self.in_capsule);
            (limits.window_bytes_max, limits.window_count_max) = (self.window, self.windows);
            limits.data_alignment = alignment(self.cpda);
            (config.reactors.in_place_bytes, config.reactors.receive) = (self.in_place, self.receive);
        })
    }
}

impl Wish {
    fn options(self) -> Options {
        options()
            .with_only_digests(Digests::from_bits_retain(self.digests))
            .with_lanes(self.lanes)
            .with_depth(self.depth)
            .tuned(|tuning| {
                tuning.alignment = alignment(self.hpda);
                tuning.r2t_limit = self.r2t_limit;
                tuning.flow_control = self.flow_control;
                tuning.in_capsule_bytes_max = self.in_capsule;
                tuning.in_place_bytes = self.in_place;
                tuning.receive = self.receive;
            })
    }
}

fn alignment(raw: u8) -> DataAlignment {
    DataAlignment::from_raw(raw).expect("5 bits")
}

fn check(association: &Association, nsid: u32, load: Load, random: &mut SplitMix64) {
    let namespace = association.namespace(wire::id::Nsid::new(nsid)).expect("a namespace");
    let mut lanes = association.lanes().expect("as many lanes as were asked for");
    let agreed = lanes.lanes()[0].agreement();
    assert_eq!(agreed.digests, association.options().digests);
    assert_eq!(agreed.to_host, association.options().tuning.alignment);
    // The content left by an earlier host is unknown.
    let mut model = Model::new(&namespace, random.draw());
    for range in host::Namespace::split(0, namespace.block_count(), namespace.write_zeroes_blocks_max()) {
        let command = namespace.write_zeroes(range.lba, range.blocks, true).expect("within the namespace");
        lanes.lanes_mut()[0].submit(command, None, 0).expect("room");
        while lanes.outstanding() > 0 {
            lanes.wait_with(&mut |_, end| assert!(end.is_ok()), crate::setup::PATIENCE);
        }
    }
    model.run(&mut lanes, &namespace, load, random);
}

/// Every combination of engine, digests, data alignment and write data transfer; other options alternate.
#[test]
fn every_agreement_carries_data_unchanged() {
    let mut random = SplitMix64::new(3);
    for engine in engines() {
        for cpda in [0, 1, 31] {
            for (h2c_data, window) in [(4096, 4096), (4096, 1 << 20), (64 << 10, 12_288), (1 << 20, 1 << 20)]
            {
                for in_capsule in [0, 8192, 64 << 10] {
                    let windows = random.pick(&[1, 2, 4]);
                    let (in_place, receive) = (random.pick(&[1, 16 << 10]), random.pick(&RECEIVES));
                    let offer = Offer { h2c_data, in_capsule, window, windows, cpda, in_place, receive };
                    let rig = offer.rig(engine, &["ram:2M?lba=512"]);
                    for digests in 0..4 {
                        let wish = Wish {
                            digests,
                            hpda: random.pick(&[0, 1, 2, 15, 31]),
                            r2t_limit: random.pick(&[1, 2, 3, 16]),
                            flow_control: random.pick(&[false, true]),
                            lanes: random.pick(&[1, 2, 4]),
                            depth: random.pick(&[1, 2, 8, 32, 128]),
                            in_capsule: random.pick(&[0, 4096, u32::MAX]),
                            in_place: random.pick(&[1, 4096, 64 << 10]),
                            receive: random.pick(&RECEIVES),
                        };
                        let load = Load { commands: 60, bytes: 3 << 20, blocks_max: 2048 };
                        let association = rig.connect(wish.options());
                        check(&association, 1, load, &mut random);
                    }
                }
            }
        }
    }
}

/// Storage that completes asynchronously, at every queue depth.
#[test]
fn every_depth_and_number_of_lanes_works_on_every_storage() {
    let mut random = SplitMix64::new(5);
    for engine in engines() {
        let storage = ["ram:4M", "file:4M?lba=512", "ram:2M?lba=512&delay=0us-500us", "file:4M"];
        let rig = Rig::new(engine, &storage);
        for lanes in [1, 2, 4] {
            for depth in [1, 4, 32, 128] {
                let options = options().with_lanes(lanes).with_depth(depth);
                let association = rig.connect(options);
                for nsid in 1..=4 {
                    let load = Load { commands: 100, bytes: 4 << 20, blocks_max: 256 };
                    check(&association, nsid, load, &mut random);
                }
            }
        }
    }
}

fn offers() -> impl Strategy<Value = Offer> {
    let receive = prop::sample::select(RECEIVES.as_slice());
    (1u32..=512, 0u32..=64, 1u32..=512, 1u8..=4, 0u8..=31, 1usize..100_000, receive).prop_map(
        |(h2c_data, in_capsule, window, windows, cpda, in_place, receive)| Offer {
            h2c_data: 4092 + h2c_data * 4,
            in_capsule: in_capsule * 1024,
            window: window * window * 4,
            windows,
            cpda,
            in_place,
            receive,
        },
    )
}

fn wishes() -> impl Strategy<Value = Wish> {
    let in_place = prop_oneof![Just(1u32), 1u32..200_000];
    let in_capsule = prop_oneof![Just(u32::MAX), 0u32..70_000];
    let receive = prop::sample::select(RECEIVES.as_slice());
    (0u8..4, 0u8..=31, 1u32..=20, any::<bool>(), 1u16..=4, 1u16..=128, in_capsule, in_place, receive)
        .prop_map(|(digests, hpda, r2t_limit, flow_control, lanes, depth, in_capsule, in_place, receive)| {
            Wish { digests, hpda, r2t_limit, flow_control, lanes, depth, in_capsule, in_place, receive }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every value that the two ends may negotiate.
    #[test]
    fn any_agreement_carries_data_unchanged(offer in offers(), wish in wishes(), seed: u64) {
        let mut random = SplitMix64::new(seed);
        let engine = random.pick(&engines());
        let (storage, lba_bytes) =
            random.pick(&[("ram:1M?lba=512", 512), ("file:1M", 4096), ("ram:1M?lba=4096", 4096)]);
        let rig = offer.rig(engine, &[storage]);
        let association = rig.connect(wish.options());
        // At most 2,048 R2Ts a command: one for each 4 bytes of 1 MiB takes half a minute.
        let blocks_max = (2048 * offer.window / lba_bytes).clamp(1, 256);
        let load = Load { commands: 60, bytes: u64::from(blocks_max) << 13, blocks_max };
        check(&association, 1, load, &mut random);
    }
}
