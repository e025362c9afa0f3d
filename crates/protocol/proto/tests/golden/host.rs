//! Golden exchanges of the host. Its cids have a slot in the lower 10 bits and a generation above: the first is 0x0400.

use nvlane_proto::HostQueue;
use nvlane_proto::handshake::HostOffer;
use nvlane_proto::host_queue::Transfer;
use wire::id::Nsid;
use wire::pdu::{DataAlignment, Digests};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::ends::HostEnd;
use crate::pdus::Dialect;
use crate::{assert_bytes, feed_what_is_wanted, hex};

/// A queue that has sent its ICReq and received this answer.
fn initialised(offer: HostOffer, request: &str, answer: &str) -> HostEnd {
    let mut end = HostEnd { queue: HostQueue::new(offer, 32) };
    assert_bytes(&end.sent(), request);
    let mut answer = &hex(answer)[..];
    assert!(matches!(end.queue.next_event(&mut answer), Ok(Some(_))));
    end.queue.set_in_capsule_bytes(4096);
    end
}

fn plain() -> HostEnd {
    initialised(
        HostOffer::default(),
        "00 00 80 00 80 00 00 00  00*120",
        // nvmet: 4 MiB per H2CData.
        "01 00 80 00 80 00 00 00  00 00 00 00 00 00 40 00  00*112",
    )
}

/// A Write or Read of blocks, the first of them block 8.
fn io(opcode: u8, block_count: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode, Nsid::new(1));
    sqe.cdw10.set(8);
    sqe.cdw12.set(block_count - 1);
    sqe
}

fn submit(end: &mut HostEnd, sqe: Sqe, transfer: Transfer<Vec<u8>>) {
    assert!(end.queue.submit(sqe, transfer, 7).is_ok());
}

fn read(length: usize) -> Transfer<Vec<u8>> {
    Transfer::FromController { buffer: vec![0; length], is_exact: true }
}

/// wire §6: the start of an admin queue, against nvmet.
#[test]
fn an_admin_queue_connects() {
    let mut end = plain();
    // Connect, whose data is in the capsule whatever the in-capsule limit.
    let mut connect = Sqe::new(0x7F, Nsid::new(1));
    connect.cdw11.set(31);
    connect.cdw12.set(5000);
    let data = hex("11*16 FF FF 00*238 6E 71 6E 2E 74 00*251 6E 71 6E 2E 68 00*251 00*256");
    end.queue.set_in_capsule_bytes(0);
    submit(&mut end, connect, Transfer::ToController(data));
    assert_bytes(
        &end.sent(),
        "
            04 00 48 48 48 04 00 00
            7F 40 00 04 01 00 00 00     // cid 0x0400, Connect
            00*16
            00*8 00 04 00 00 00 00 00 01
            00 00 00 00 1F 00 00 00
            88 13 00 00 00*12
            11*16 FF FF 00*238
            6E 71 6E 2E 74 00*251
            6E 71 6E 2E 68 00*251
            00*256
        ",
    );
    let connected = end.complete(&hex("
        05 00 18 00 18 00 00 00  01 00 00 00 00 00 00 00  FF FF 00 00 00 04 00 00
    "));
    assert_eq!((connected.user, connected.status, connected.result), (7, Status::SUCCESS, 1));
    assert_eq!(connected.buffer.map(|data| data.len()), Some(1024));

    // Property Get CAP: no data, an 8-byte result. The next generation of the same slot.
    let mut get = Sqe::new(0x7F, Nsid::new(4));
    get.cdw10.set(1);
    submit(&mut end, get, Transfer::None);
    assert_bytes(
        &end.sent(),
        "
            04 00 48 00 48 00 00 00
            7F 40 00 08 04 00 00 00 00*16
            00*8 00 00 00 00 00 00 00 5A
            01 00 00 00 00*20
        ",
    );
    let cap = end.complete(&hex("05 00 18 00 18 00 00 00  FF 03 01 1E 20 00 00 00  02 00 00 00 00 08 00 00"));
    assert_eq!((cap.result, cap.received), (0x0000_0020_1E01_03FF, 0));

    // Identify: C2HData, then the response.
    submit(&mut end, Sqe::new(0x06, Nsid::new(0)), read(4096));
    assert_bytes(
        &end.sent(),
        "
            04 00 48 00 48 00 00 00
            06 40 00 0C 00 00 00 00 00*16
            00*8 00 10 00 00 00 00 00 5A
            00*24
        ",
    );
    let identify = end.complete(&hex("
        07 04 18 18 18 10 00 00  00 0C 00 00 00 00 00 00  00 10 00 00 00 00 00 00  1D*4096
        05 00 18 00 18 00 00 00  00*8  03 00 00 00 00 0C 00 00
    "));
    assert_eq!((identify.status, identify.received), (Status::SUCCESS, 4096));
    assert_eq!(identify.buffer, Some(vec![0x1D; 4096]));

    // A failure: invalid field, do not retry.
    submit(&mut end, Sqe::new(0x09, Nsid::new(0)), Transfer::None);
    end.sent();
    let refused = end.complete(&hex("05 00 18 00 18 00 00 00  00*8  04 00 00 00 00 10 04 80"));
    assert_eq!(refused.status, Status::INVALID_FIELD.with_dnr());
}

/// wire §4.1
#[test]
fn a_write_in_its_capsule() {
    let mut end = plain();
    submit(&mut end, io(0x01, 8), Transfer::ToController(vec![0xA5; 4096]));
    assert_bytes(
        &end.sent(),
        "
            04 00 48 48 48 10 00 00
            01 40 00 04 01 00 00 00 00*16
            00*8 00 10 00 00 00 00 00 01
            08 00 00 00 00 00 00 00 07 00 00 00 00*12
            A5*4096
        ",
    );
    let written = end.complete(&hex("05 00 18 00 18 00 00 00  00*8  01 00 00 00 00 04 00 00"));
    assert_eq!((written.status, written.buffer), (Status::SUCCESS, Some(vec![0xA5; 4096])));
}

/// A header of 24 bytes with its digest, padding up to 128, data, its digest; then a response: a driver that receives
/// the wanted bytes, at most 1000, stops at each.
#[test]
fn what_is_wanted_of_an_answer_ends_with_each_part() {
    let dialect = Dialect { digests: 3, alignment: 31 };
    let mut end = HostEnd::plain(dialect);
    let cid = end.read(1480);
    let mut response = [0; 16];
    response[12..14].copy_from_slice(&cid.to_le_bytes());
    let answer = [dialect.c2h(cid, 0, &[0x1D; 1480], 0x04), dialect.response(response)].concat();
    let wanted = feed_what_is_wanted(
        &mut end,
        &answer,
        |end| end.queue.wanted_bytes(),
        |end, part, is_last| assert_eq!(end.feed(part).unwrap().len(), usize::from(is_last)),
    );
    assert_eq!(wanted, [5, 20, 100, 1480, 480, 4, 8, 20]);
}

/// wire §4.1: one byte too long for the capsule, so by R2T; SPDK requests it in two R2Ts, and accepts 8 KiB per
/// H2CData.
#[test]
fn a_write_by_r2t() {
    let mut end = initialised(
        HostOffer::default(),
        "00 00 80 00 80 00 00 00  00*120",
        "01 00 80 00 80 00 00 00  00 00 00 00 00 20 00 00  00*112",
    );
    let data = hex("A5*8192 5A*4096 77*4096");
    submit(&mut end, io(0x01, 32), Transfer::ToController(data));
    assert_bytes(
        &end.sent(),
        "
            04 00 48 00 48 00 00 00
            01 40 00 04 01 00 00 00 00*16
            00*8 00 40 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 1F 00 00 00 00*12
        ",
    );
    end.feed(&hex("09 00 18 00 18 00 00 00  00 04 EF BE 00 00 00 00  00 30 00 00 00 00 00 00")).unwrap();
    assert_bytes(
        &end.sent(),
        "
            06 00 18 18 18 20 00 00  00 04 EF BE 00 00 00 00  00 20 00 00 00 00 00 00  A5*8192
            06 04 18 18 18 10 00 00  00 04 EF BE 00 20 00 00  00 10 00 00 00 00 00 00  5A*4096
        ",
    );
    end.feed(&hex("09 00 18 00 18 00 00 00  00 04 AD DE 00 30 00 00  00 10 00 00 00 00 00 00")).unwrap();
    assert_bytes(
        &end.sent(),
        "06 04 18 18 18 10 00 00  00 04 AD DE 00 30 00 00  00 10 00 00 00 00 00 00  77*4096",
    );
    let written = end.complete(&hex("05 00 18 00 18 00 00 00  00*8  01 00 00 00 00 04 00 00"));
    assert_eq!(written.status, Status::SUCCESS);
}

/// wire §4.2
#[test]
fn reads_with_a_response_and_with_success() {
    let mut end = plain();
    submit(&mut end, io(0x02, 2), read(1024));
    assert_bytes(
        &end.sent(),
        "
            04 00 48 00 48 00 00 00
            02 40 00 04 01 00 00 00 00*16
            00*8 00 04 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 01 00 00 00 00*12
        ",
    );
    let done = end.complete(&hex("
        07 00 18 18 18 02 00 00  00 04 00 00 00 00 00 00  00 02 00 00 00 00 00 00  A5*512
        07 04 18 18 18 02 00 00  00 04 00 00 00 02 00 00  00 02 00 00 00 00 00 00  5A*512
        05 00 18 00 18 00 00 00  00*8  01 00 00 00 00 04 00 00
    "));
    assert_eq!((done.status, done.buffer), (Status::SUCCESS, Some(hex("A5*512 5A*512"))));

    // Two at once, interleaved; SUCCESS ends them.
    submit(&mut end, io(0x02, 2), read(1024));
    submit(&mut end, io(0x02, 1), read(512));
    end.sent();
    let done = end
        .feed(&hex("
            07 00 18 18 18 02 00 00  00 08 00 00 00 00 00 00  00 02 00 00 00 00 00 00  11*512
            07 0C 18 18 18 02 00 00  01 04 00 00 00 00 00 00  00 02 00 00 00 00 00 00  22*512
            07 0C 18 18 18 02 00 00  00 08 00 00 00 02 00 00  00 02 00 00 00 00 00 00  33*512
        "))
        .unwrap();
    assert_eq!(done.len(), 2);
    assert_eq!((done[0].status, &done[0].buffer), (Status::SUCCESS, &Some(hex("22*512"))));
    assert_eq!((done[1].status, &done[1].buffer), (Status::SUCCESS, &Some(hex("11*512 33*512"))));
    assert_eq!((done[1].result, done[1].received), (0, 1024));
}

/// wire §3
#[test]
fn writes_and_reads_with_both_digests() {
    let mut end = initialised(
        HostOffer { digests: Digests::all(), ..HostOffer::default() },
        "00 00 80 00 80 00 00 00  00 00 00 03 00 00 00 00  00*112",
        "01 00 80 00 80 00 00 00  00 00 00 03 00 20 00 00  00*112",
    );
    end.queue.set_in_capsule_bytes(512);
    submit(&mut end, io(0x01, 1), Transfer::ToController(vec![0xA5; 512]));
    assert_bytes(
        &end.sent(),
        "
            04 03 48 4C 50 02 00 00
            01 40 00 04 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 01
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
            19 BD 8E AE
            A5*512
            7D 15 E5 7B
        ",
    );
    let done = end.complete(&hex("05 01 18 00 1C 00 00 00  00*8  01 00 00 00 00 04 00 00  A6 CB E1 5E"));
    assert_eq!(done.status, Status::SUCCESS);

    let both = || {
        initialised(
            HostOffer { digests: Digests::all(), ..HostOffer::default() },
            "00 00 80 00 80 00 00 00  00 00 00 03 00 00 00 00  00*112",
            "01 00 80 00 80 00 00 00  00 00 00 03 00 10 00 00  00*112",
        )
    };
    let mut end = both();
    end.queue.set_in_capsule_bytes(0);
    submit(&mut end, io(0x01, 2), Transfer::ToController(hex("A5*512 5A*512")));
    assert_bytes(
        &end.sent(),
        "
            04 01 48 00 4C 00 00 00
            01 40 00 04 01 00 00 00 00*16
            00*8 00 04 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 01 00 00 00 00*12
            E5 48 61 A5
        ",
    );
    let r2t = "09 01 18 00 1C 00 00 00  00 04 EF BE 00 00 00 00  00 04 00 00 00 00 00 00  CE 3F 7B D8";
    end.feed(&hex(r2t)).unwrap();
    // 4096 bytes may go in one PDU, so all of the data does.
    assert_bytes(
        &end.sent(),
        "
            06 07 18 1C 20 04 00 00  00 04 EF BE 00 00 00 00  00 04 00 00 00 00 00 00  89 2A 8F 87
            A5*512 5A*512  E9 B8 09 E9
        ",
    );

    let mut end = both();
    submit(&mut end, io(0x02, 1), read(512));
    assert_bytes(
        &end.sent(),
        "
            04 01 48 00 4C 00 00 00
            02 40 00 04 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
            C2 41 41 DD
        ",
    );
    let done = end.complete(&hex("
        07 07 18 1C 20 02 00 00  00 04 00 00 00 00 00 00  00 02 00 00 00 00 00 00  E9 71 02 9D
        5A*512  2A 6A C0 10
        05 01 18 00 1C 00 00 00  00*8  01 00 00 00 00 04 00 00  A6 CB E1 5E
    "));
    assert_eq!((done.status, done.buffer), (Status::SUCCESS, Some(vec![0x5A; 512])));
    let mut end = both();
    submit(&mut end, io(0x02, 1), read(512));
    let done = end.complete(&hex("
        07 0F 18 1C 20 02 00 00  00 04 00 00 00 00 00 00  00 02 00 00 00 00 00 00  3A 6B A9 3D
        5A*512  2A 6A C0 10
    "));
    assert_eq!((done.status, done.buffer), (Status::SUCCESS, Some(vec![0x5A; 512])));
}

/// wire §3: SPDK's target answers our alignment with the same.
#[test]
fn writes_and_a_read_with_alignment_both_ways() {
    let mut end = initialised(
        HostOffer { alignment: DataAlignment::from_raw(31).unwrap(), ..HostOffer::default() },
        "00 00 80 00 80 00 00 00  00 00 1F 00 00 00 00 00  00*112",
        "01 00 80 00 80 00 00 00  00 00 1F 00 00 20 00 00  00*112",
    );
    submit(&mut end, io(0x01, 1), Transfer::ToController(vec![0xA5; 512]));
    assert_bytes(
        &end.sent(),
        "
            04 00 48 80 80 02 00 00     // data at 128
            01 40 00 04 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 01
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
            00*56 A5*512
        ",
    );
    end.queue.set_in_capsule_bytes(0);
    submit(&mut end, io(0x01, 1), Transfer::ToController(vec![0x5A; 512]));
    end.sent();
    end.feed(&hex("09 00 18 00 18 00 00 00  01 04 EF BE 00 00 00 00  00 02 00 00 00 00 00 00")).unwrap();
    assert_bytes(
        &end.sent(),
        "
            06 04 18 80 80 02 00 00     // data at 128
            01 04 EF BE 00 00 00 00  00 02 00 00 00 00 00 00
            00*104 5A*512
        ",
    );
    submit(&mut end, io(0x02, 1), read(512));
    end.sent();
    let done = end.complete(&hex("
        07 0C 18 80 80 02 00 00  02 04 00 00 00 00 00 00  00 02 00 00 00 00 00 00
        EE*104 77*512
    "));
    assert_eq!((done.status, done.buffer), (Status::SUCCESS, Some(vec![0x77; 512])));
}

/// wire §4.1: Fabrics data goes in the capsule up to the size that every controller accepts.
#[test]
fn fabrics_data_that_fits_no_capsule_goes_by_r2t() {
    for (length, byte_39) in [(8192, 0x01), (8196, 0x5A)] {
        let mut end = plain();
        submit(&mut end, Sqe::new(0x7F, Nsid::new(5)), Transfer::ToController(vec![0; length]));
        assert_eq!(end.sent()[8 + 39], byte_39);
    }
}
