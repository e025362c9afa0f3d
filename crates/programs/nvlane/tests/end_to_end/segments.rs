//! The data is right however TCP cuts the stream, down to single bytes.

use host::LaneSet;
use linux::random::SplitMix64;
use wire::pdu::{DataAlignment, Digests};

use crate::exercise::{Load, Model};
use crate::relay::{Cut, Relay};
use crate::setup::{Rig, connect_to, engines, open, options};

fn check(cut: Cut, load: Load, digests: Digests, seed: u64) {
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:1M?lba=512"], |config| {
            config.limits.h2c_data_bytes_max = 8192;
            config.limits.data_alignment = DataAlignment::from_raw(3).expect("5 bits");
        });
        let relay = Relay::new(rig.socket_address(), cut);
        let alignment = DataAlignment::from_raw(2).expect("5 bits");
        let options = options()
            .with_only_digests(digests)
            .with_lanes(2)
            .with_depth(16)
            .tuned(|tuning| tuning.alignment = alignment);
        let association = connect_to(relay.address(), options);
        let namespace = association.addressed_namespace().expect("one namespace");
        let mut lanes = association.lanes().expect("two lanes");
        let mut random = SplitMix64::new(seed);
        Model::new(&namespace, seed).run(&mut lanes, &namespace, load, &mut random);
    }
}

/// The premise of these tests.
#[test]
#[should_panic(expected = "block 77 is not of generation")]
fn a_block_that_is_not_right_is_found() {
    let rig = Rig::new(engines()[0], &["ram:1M?lba=512"]);
    let association = rig.connect(options().with_lanes(2));
    let namespace = association.addressed_namespace().expect("one namespace");
    let mut lanes = LaneSet::new(vec![association.lane().expect("a lane")]).expect("a set");
    let mut model = Model::new(&namespace, 1);
    let load = Load { commands: 100, bytes: 1 << 20, blocks_max: 64 };
    model.run(&mut lanes, &namespace, load, &mut SplitMix64::new(1));
    let mut other = open(&association, 1);
    let mut block = [0; 512];
    other.read_at(&mut block, 77 * 512).expect("a read");
    block[511] ^= 1;
    other.write_at(&block, 77 * 512).expect("a write");
    model.verify(&mut lanes, &namespace);
}

#[test]
fn one_byte_per_segment() {
    for (seed, digests) in [Digests::empty(), Digests::all()].into_iter().enumerate() {
        let load = Load { commands: 40, bytes: 48 << 10, blocks_max: 64 };
        check(Cut::Bytes, load, digests, seed as u64);
    }
}

#[test]
fn segments_of_any_length() {
    for (seed, most) in [7, 100, 2000, 70_000].into_iter().enumerate() {
        let digests = if seed % 2 == 0 { Digests::all() } else { Digests::empty() };
        let load = Load { commands: 120, bytes: most as u64 * 1000, blocks_max: 1024 };
        check(Cut::Below(most), load, digests, seed as u64);
    }
}
