//! Golden exchanges of the controller.

use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::handshake::ControllerOffer;
use wire::pdu::DataAlignment;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::pdus::Dialect;
use crate::{assert_bytes, feed_what_is_wanted, hex};

/// A delivered command.
#[track_caller]
fn deliver(end: &mut ControllerEnd, bytes: &str) -> (nvlane_proto::Slot, Vec<u8>) {
    let mut seen = end.feed(&hex(bytes)).unwrap();
    match seen.pop() {
        Some(Seen::Command { slot, sqe, data }) if seen.is_empty() => {
            assert_eq!(sqe, hex(bytes)[8..72], "the entry as it came");
            (slot, data)
        }
        other => panic!("{other:?}"),
    }
}

/// A queue after a handshake of Linux with these digests, and after a Connect of 128 entries.
fn connected(digests: &str, is_flow_control_disabled: bool) -> ControllerEnd {
    let offer = ControllerOffer { h2c_data_bytes_max: 0x0002_0000, ..ControllerOffer::default() };
    let mut end = ControllerEnd::new(QueueSettings { offer, ..QueueSettings::default() });
    end.feed(&hex(&format!("00 00 80 00 80 00 00 00  00 00 00 {digests} 00 00 00 00  00*112"))).unwrap();
    assert_bytes(&end.sent(), &format!("01 00 80 00 80 00 00 00  00 00 00 {digests} 00 00 02 00  00*112"));
    end.queue.establish(128, is_flow_control_disabled);
    end
}

/// wire §24: the admin queue of a Linux host up to its first asynchronous event request.
#[test]
fn linux_connects_its_admin_queue() {
    let mut end = ControllerEnd::new(QueueSettings::default());
    let seen = end
        .feed(&hex("
            00 00 80 00 80 00 00 00     // ICReq, hlen 128, plen 128
            00 00 00 00 00 00 00 00     // pfv 0, hpda 0, no digests, one R2T
            00*112
        "))
        .unwrap();
    assert!(matches!(seen[..], [Seen::Initialised(_)]));
    assert_bytes(
        &end.sent(),
        "
            01 00 80 00 80 00 00 00     // ICResp
            00 00 00 00 00 00 10 00     // pfv 0, cpda 0, no digests, 1 MiB per H2CData
            00*112
        ",
    );

    // Connect: capsule of 72 + 1024 bytes, data at 72.
    let (slot, data) = deliver(
        &mut end,
        "
            04 00 48 48 48 04 00 00
            7F 40 00 00 01 00 00 00     // Fabrics, SGL, cid 0, Connect
            00*16
            00*8 00 04 00 00 00 00 00 01  // in capsule, 1024 bytes
            00 00 00 00 1F 00 00 00     // recfmt 0, qid 0, 32 entries
            88 13 00 00 00*12           // kato 5 s
            11*16 FF FF 00*238          // host id, any controller
            6E 71 6E 2E 74 00*251       // subsystem nqn.t
            6E 71 6E 2E 68 00*251       // host nqn.h
            00*256
        ",
    );
    assert_eq!(data.len(), 1024);
    assert_eq!(data[256..262], *b"nqn.t\0");
    end.queue.establish(32, false);
    end.queue.complete(slot, Status::SUCCESS, 0x0001);
    assert_bytes(
        &end.sent(),
        "
            05 00 18 00 18 00 00 00     // CapsuleResp
            01 00 00 00 00 00 00 00     // controller 1
            01 00 00 00 00 00 00 00     // head 1, queue 0, cid 0, success
        ",
    );

    // Property Get CAP, 8 bytes.
    let (slot, data) = deliver(
        &mut end,
        "
            04 00 48 00 48 00 00 00
            7F 40 01 10 04 00 00 00     // cid 0x1001
            00*16
            00*8 00 00 00 00 00 00 00 5A
            01 00 00 00 00 00 00 00 00*16
        ",
    );
    assert!(data.is_empty());
    end.queue.complete(slot, Status::SUCCESS, 0x0000_0020_1E01_007F);
    assert_bytes(&end.sent(), "05 00 18 00 18 00 00 00  7F 00 01 1E 20 00 00 00  02 00 00 00 01 10 00 00");

    // Property Set CC.EN, Property Get CSTS and Get VS in one segment; answered in another order.
    let three = "
        04 00 48 00 48 00 00 00
        7F 40 02 20 00 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A
        00 00 00 00 14 00 00 00 01 00 46 00 00 00 00 00 00*8
        04 00 48 00 48 00 00 00
        7F 40 03 20 04 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A
        00 00 00 00 1C 00 00 00 00*16
        04 00 48 00 48 00 00 00
        7F 40 04 20 04 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A
        00 00 00 00 08 00 00 00 00*16
    ";
    let slots: Vec<_> = end
        .feed(&hex(three))
        .unwrap()
        .into_iter()
        .map(|seen| match seen {
            Seen::Command { slot, .. } => slot,
            other => panic!("{other:?}"),
        })
        .collect();
    end.queue.complete(slots[2], Status::SUCCESS, 0x0002_0000);
    end.queue.complete(slots[0], Status::SUCCESS, 0);
    end.queue.complete(slots[1], Status::SUCCESS, 1);
    assert_bytes(
        &end.sent(),
        "
            05 00 18 00 18 00 00 00  00 00 02 00 00 00 00 00  05 00 00 00 04 20 00 00
            05 00 18 00 18 00 00 00  00 00 00 00 00 00 00 00  05 00 00 00 02 20 00 00
            05 00 18 00 18 00 00 00  01 00 00 00 00 00 00 00  05 00 00 00 03 20 00 00
        ",
    );

    // Identify controller: 4096 bytes in one C2HData, then the response.
    let (slot, _) = deliver(
        &mut end,
        "
            04 00 48 00 48 00 00 00
            06 40 05 30 00 00 00 00 00*16 00*8 00 10 00 00 00 00 00 5A
            01 00 00 00 00*20
        ",
    );
    end.answer(slot, vec![0x1D; 4096], 0);
    assert_bytes(
        &end.sent(),
        "
            07 04 18 18 18 10 00 00     // C2HData, LAST, data at 24, plen 24 + 4096
            05 30 00 00 00 00 00 00     // cid 0x3005, offset 0
            00 10 00 00 00 00 00 00     // 4096 bytes
            1D*4096
            05 00 18 00 18 00 00 00  00 00 00 00 00 00 00 00  06 00 00 00 05 30 00 00
        ",
    );

    // Asynchronous event request, cid 31, which stays outstanding; a keep alive overtakes it.
    let (event, _) = deliver(
        &mut end,
        "04 00 48 00 48 00 00 00  0C 40 1F 00 00 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A 00*24",
    );
    let (slot, _) = deliver(
        &mut end,
        "04 00 48 00 48 00 00 00  18 40 06 40 00 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A 00*24",
    );
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(&end.sent(), "05 00 18 00 18 00 00 00  00*8  08 00 00 00 06 40 00 00");
    // Namespace attribute changed: read log 4.
    end.queue.complete(event, Status::SUCCESS, 0x0004_0002);
    assert_bytes(&end.sent(), "05 00 18 00 18 00 00 00  02 00 04 00 00 00 00 00  08 00 00 00 1F 00 00 00");
}

/// wire §4.1
#[test]
fn a_write_in_its_capsule() {
    let mut end = connected("00", false);
    let (slot, data) = deliver(
        &mut end,
        "
            04 00 48 48 48 10 00 00     // capsule of 72 + 4096 bytes, data at 72
            01 40 11 40 01 00 00 00     // Write, cid 0x4011, namespace 1
            00*16
            00*8 00 10 00 00 00 00 00 01  // in capsule, 4096 bytes
            08 00 00 00 00 00 00 00 07 00 00 00 00*12
            A5*4096
        ",
    );
    assert_eq!(data, vec![0xA5; 4096]);
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(&end.sent(), "05 00 18 00 18 00 00 00  00*8  01 00 00 00 11 40 00 00");
}

/// A header of 72 bytes with its digest, padding up to 128, data, its digest: a driver that receives the wanted bytes,
/// at most 1000, stops at each.
#[test]
fn what_is_wanted_of_a_capsule_ends_with_each_part() {
    let dialect = Dialect { digests: 3, alignment: 31 };
    let mut end = ControllerEnd::plain(dialect);
    let write = hex("
        01 40 11 40 01 00 00 00 00*16
        00*8 C8 05 00 00 00 00 00 01  // in capsule, 1480 bytes
        08 00 00 00 00 00 00 00 07 00 00 00 00*12
    ");
    let pdu = dialect.command(write.try_into().unwrap(), &[0xA5; 1480]);
    let wanted = feed_what_is_wanted(
        &mut end,
        &pdu,
        |end| end.queue.wanted_bytes(),
        |end, part, is_last| assert_eq!(end.feed(part).unwrap().len(), usize::from(is_last)),
    );
    assert_eq!(wanted, [5, 68, 52, 1480, 480, 4]);
    assert_eq!(end.queue.wanted_bytes(), 8);
}

/// wire §4.1: the data arrives in two H2CData, since one carries at most 128 KiB.
#[test]
fn a_write_by_r2t() {
    let mut end = connected("00", false);
    let (slot, _) = deliver(
        &mut end,
        "
            04 00 48 00 48 00 00 00
            01 40 11 40 01 00 00 00 00*16
            00*8 00 10 02 00 00 00 00 5A  // by PDUs of its own, 128 KiB + 4096
            08 00 00 00 00 00 00 00 07 01 00 00 00*12
        ",
    );
    end.queue.request_data(slot, vec![0; 0x21000], 0x21000);
    assert_bytes(
        &end.sent(),
        "
            09 00 18 00 18 00 00 00     // R2T
            11 40 00 10 00 00 00 00     // cid 0x4011, our tag, offset 0
            00 10 02 00 00 00 00 00     // all of it
        ",
    );
    let first = "
        06 00 18 18 18 00 02 00         // H2CData, plen 24 + 128 KiB
        11 40 00 10 00 00 00 00
        00 00 02 00 00 00 00 00
        A5*131072
    ";
    assert_eq!(end.feed(&hex(first)).unwrap(), []);
    let second = "
        06 04 18 18 18 10 00 00         // H2CData, LAST
        11 40 00 10 00 00 02 00         // offset 128 KiB
        00 10 00 00 00 00 00 00
        5A*4096
    ";
    assert_eq!(end.feed(&hex(second)).unwrap(), [Seen::DataReceived { slot, is_intact: true }]);
    assert_eq!(end.queue.take_buffer(slot), hex("A5*131072 5A*4096"));
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(&end.sent(), "05 00 18 00 18 00 00 00  00*8  01 00 00 00 11 40 00 00");
}

const READ: &str = "
    04 00 48 00 48 00 00 00
    02 40 11 40 01 00 00 00 00*16
    00*8 00 20 00 00 00 00 00 5A        // 8192 bytes
    08 00 00 00 00 00 00 00 0F 00 00 00 00*12
";

/// wire §4.2: with flow control a response carries the head.
#[test]
fn a_read_with_its_response() {
    let mut end = connected("00", false);
    let (slot, _) = deliver(&mut end, READ);
    end.answer(slot, vec![0x5A; 8192], 0);
    assert_bytes(
        &end.sent(),
        "
            07 04 18 18 18 20 00 00  11 40 00 00 00 00 00 00  00 20 00 00 00 00 00 00  5A*8192
            05 00 18 00 18 00 00 00  00*8  01 00 00 00 11 40 00 00
        ",
    );
}

/// wire §4.2: without flow control SUCCESS on the last data replaces the response, unless that has a result.
#[test]
fn a_read_that_ends_with_its_data() {
    let mut end = connected("00", true);
    let (slot, _) = deliver(&mut end, READ);
    end.answer(slot, vec![0x5A; 8192], 0);
    assert_bytes(
        &end.sent(),
        "07 0C 18 18 18 20 00 00  11 40 00 00 00 00 00 00  00 20 00 00 00 00 00 00  5A*8192",
    );
    let (slot, _) = deliver(&mut end, READ);
    end.answer(slot, vec![0x5A; 8192], 0x0807_0605_0403_0201);
    assert_bytes(
        &end.sent(),
        "
            07 04 18 18 18 20 00 00  11 40 00 00 00 00 00 00  00 20 00 00 00 00 00 00  5A*8192
            05 00 18 00 18 00 00 00  01 02 03 04 05 06 07 08  FF FF 00 00 11 40 00 00
        ",
    );
    // Without data there is no C2HData.
    let (slot, _) = deliver(&mut end, READ);
    end.answer(slot, Vec::new(), 0);
    assert_bytes(&end.sent(), "05 00 18 00 18 00 00 00  00*8  FF FF 00 00 11 40 00 00");
}

/// wire §4.2: ascending offsets, LAST on the last PDU.
#[test]
fn a_read_in_several_pdus() {
    let settings = QueueSettings { c2h_data_bytes: 4096, ..QueueSettings::default() };
    let mut end = ControllerEnd::new(settings);
    end.feed(&hex("00 00 80 00 80 00 00 00 00*120")).unwrap();
    end.sent();
    end.queue.establish(128, true);
    let (slot, _) = deliver(&mut end, READ);
    end.answer(slot, hex("5A*4096 A5*4096"), 0);
    assert_bytes(
        &end.sent(),
        "
            07 00 18 18 18 10 00 00  11 40 00 00 00 00 00 00  00 10 00 00 00 00 00 00  5A*4096
            07 0C 18 18 18 10 00 00  11 40 00 00 00 10 00 00  00 10 00 00 00 00 00 00  A5*4096
        ",
    );
}

/// wire §3: every header except those of the handshake has its digest, and all data has one.
#[test]
fn writes_and_a_read_with_both_digests() {
    let mut end = connected("03", false);
    let (slot, data) = deliver(
        &mut end,
        "
            04 03 48 4C 50 02 00 00     // both digests, data at 76, plen 76 + 512 + 4
            01 40 11 40 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 01
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
            2E 71 CE 9E
            A5*512
            7D 15 E5 7B
        ",
    );
    assert_eq!(data, vec![0xA5; 512]);
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(&end.sent(), "05 01 18 00 1C 00 00 00  00*8  01 00 00 00 11 40 00 00  E0 F4 7B 33");

    let (slot, _) = deliver(
        &mut end,
        "
            04 01 48 00 4C 00 00 00     // no data, so no flag for its digest: as Linux has it
            01 40 11 40 01 00 00 00 00*16
            00*8 00 04 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 01 00 00 00 00*12
            D2 84 21 95
        ",
    );
    end.queue.request_data(slot, vec![0; 1024], 1024);
    // The slot of the first command, in its next generation.
    assert_bytes(
        &end.sent(),
        "09 01 18 00 1C 00 00 00  11 40 00 20 00 00 00 00  00 04 00 00 00 00 00 00  3B 78 D4 7B",
    );
    let data = "
        06 03 18 1C 20 02 00 00  11 40 00 20 00 00 00 00  00 02 00 00 00 00 00 00  6D 76 CA 1B
        A5*512  7D 15 E5 7B
        06 07 18 1C 20 02 00 00  11 40 00 20 00 02 00 00  00 02 00 00 00 00 00 00  0F 59 66 E2
        5A*512  2A 6A C0 10
    ";
    assert_eq!(end.feed(&hex(data)).unwrap(), [Seen::DataReceived { slot, is_intact: true }]);
    assert_eq!(end.queue.take_buffer(slot), hex("A5*512 5A*512"));
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(&end.sent(), "05 01 18 00 1C 00 00 00  00*8  02 00 00 00 11 40 00 00  89 73 3F E8");

    let (slot, _) = deliver(
        &mut end,
        "
            04 01 48 00 4C 00 00 00
            02 40 11 40 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
            F5 8D 01 ED
        ",
    );
    end.answer(slot, vec![0x5A; 512], 0);
    assert_bytes(
        &end.sent(),
        "
            07 07 18 1C 20 02 00 00  11 40 00 00 00 00 00 00  00 02 00 00 00 00 00 00  74 38 08 75
            5A*512  2A 6A C0 10
            05 01 18 00 1C 00 00 00  00*8  03 00 00 00 11 40 00 00  AE 0E 03 A1
        ",
    );
}

/// wire §3: a host that requires data at multiples of 128, a controller that requires it at multiples of 32.
#[test]
fn writes_and_a_read_with_alignment_both_ways() {
    let offer =
        ControllerOffer { alignment: DataAlignment::from_raw(7).unwrap(), ..ControllerOffer::default() };
    let mut end = ControllerEnd::new(QueueSettings { offer, ..QueueSettings::default() });
    end.feed(&hex("00 00 80 00 80 00 00 00  00 00 1F 00 00 00 00 00  00*112")).unwrap();
    assert_bytes(&end.sent(), "01 00 80 00 80 00 00 00  00 00 07 00 00 00 10 00  00*112");
    end.queue.establish(128, true);
    let (slot, data) = deliver(
        &mut end,
        "
            04 00 48 60 60 02 00 00     // data at 96, plen 96 + 512
            01 40 11 40 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 01
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
            EE*24                       // padding says nothing
            A5*512
        ",
    );
    assert_eq!(data, vec![0xA5; 512]);
    end.queue.complete(slot, Status::SUCCESS, 0);
    end.sent();
    let (slot, _) = deliver(
        &mut end,
        "
            04 00 48 00 48 00 00 00
            01 40 11 40 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
        ",
    );
    end.queue.request_data(slot, vec![0; 512], 512);
    assert_bytes(&end.sent(), "09 00 18 00 18 00 00 00  11 40 00 20 00 00 00 00  00 02 00 00 00 00 00 00");
    let data = "
        06 04 18 20 20 02 00 00         // data at 32, plen 32 + 512
        11 40 00 20 00 00 00 00  00 02 00 00 00 00 00 00
        EE*8 5A*512
    ";
    assert_eq!(end.feed(&hex(data)).unwrap(), [Seen::DataReceived { slot, is_intact: true }]);
    assert_eq!(end.queue.take_buffer(slot), vec![0x5A; 512]);
    end.queue.complete(slot, Status::SUCCESS, 0);
    end.sent();
    let (slot, _) = deliver(
        &mut end,
        "
            04 00 48 00 48 00 00 00
            02 40 11 40 01 00 00 00 00*16
            00*8 00 02 00 00 00 00 00 5A
            08 00 00 00 00 00 00 00 00 00 00 00 00*12
        ",
    );
    end.answer(slot, vec![0x77; 512], 0);
    assert_bytes(
        &end.sent(),
        "
            07 0C 18 80 80 02 00 00     // data at 128, plen 128 + 512
            11 40 00 00 00 00 00 00  00 02 00 00 00 00 00 00
            00*104 77*512
        ",
    );
}

/// An Asynchronous Event Request, and a Property Set of CC with a shutdown, with the same cid.
fn event_request(cid: &str) -> String {
    format!("04 00 48 00 48 00 00 00  0C 40 {cid} 00 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A 00*24")
}

fn shut_down(cid: &str) -> String {
    format!(
        "04 00 48 00 48 00 00 00  7F 40 {cid} 00 00 00 00 00*16 00*8 00 00 00 00 00 00 00 5A
         00 00 00 00 14 00 00 00  01 40 46 00 00 00 00 00 00*8"
    )
}

/// wire §13
#[test]
fn a_host_that_completes_its_event_requests_itself_shuts_down_with_one_of_their_ids() {
    let mut end = connected("00", false);
    let requests = ["05 00", "06 00"].map(|cid| deliver(&mut end, &event_request(cid)).0);
    requests.iter().for_each(|slot| end.queue.await_event(*slot));
    let (slot, _) = deliver(&mut end, &shut_down("06 00"));
    assert_eq!(end.queue.next_superseded(), Some(requests[1]));
    // An event comes: it goes out with the request that the host knows of.
    end.queue.complete(requests[1], Status::SUCCESS, 0x0004_0002);
    end.queue.complete(requests[0], Status::SUCCESS, 0x0004_0002);
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(
        &end.sent(),
        "
            05 00 18 00 18 00 00 00  02 00 04 00 00 00 00 00  03 00 00 00 05 00 00 00
            05 00 18 00 18 00 00 00  00 00 00 00 00 00 00 00  03 00 00 00 06 00 00 00
        ",
    );
}

/// wire §13
#[test]
fn a_host_that_uses_no_id_twice_shuts_down_while_its_event_requests_wait() {
    let mut end = connected("00", false);
    let requests = ["05 00", "06 00"].map(|cid| deliver(&mut end, &event_request(cid)).0);
    requests.iter().for_each(|slot| end.queue.await_event(*slot));
    let (slot, _) = deliver(&mut end, &shut_down("07 00"));
    assert_eq!((end.queue.next_superseded(), end.queue.outstanding()), (None, 3));
    end.queue.complete(requests[1], Status::SUCCESS, 0x0004_0002);
    end.queue.complete(slot, Status::SUCCESS, 0);
    assert_bytes(
        &end.sent(),
        "
            05 00 18 00 18 00 00 00  02 00 04 00 00 00 00 00  03 00 00 00 06 00 00 00
            05 00 18 00 18 00 00 00  00 00 00 00 00 00 00 00  03 00 00 00 07 00 00 00
        ",
    );
    let mut gone = Vec::new();
    end.queue.clear(|slot| gone.push(slot));
    assert_eq!(gone, [requests[0]]);
}
