//! Times to live, absolute times, and steps of the wall clock.

use super::*;

#[test]
fn values_end_when_they_should() {
    let mut client = Client::new();
    client.talk(
        "set a 0 10 1|1|set b 0 -1 1|1|set c 0 1700000005 1|1|set d 0 2592001 1|1|",
        "STORED|STORED|STORED|STORED|",
    );
    client.talk("get a b c d|", "VALUE a 0 1|1|VALUE c 0 1|1|END|");
    client.talk("mg a t|", "HD t10|");
    client.partitions.wait(6);
    client.talk("get a b c d|", "VALUE a 0 1|1|END|");
    client.talk("gat 20 a|", "VALUE a 0 1|1|END|");
    client.partitions.wait(10);
    client.talk("get a|touch a -1|get a|", "VALUE a 0 1|1|END|TOUCHED|END|");
    client.talk("set a 0 0 1|1|flush_all 5|get a|", "STORED|OK|VALUE a 0 1|1|END|");
    client.partitions.wait(5);
    client.talk("get a|", "END|");
}

/// The wall clock is set while pairs are stored: by an operator, by NTP after a start in 1970, to years that do not fit
/// in 32 bits.
///
/// hostile R11
#[test]
fn times_to_live_uptime_and_ages_do_not_follow_steps_of_the_wall_clock() {
    const START_S: i64 = 1_700_000_000;
    for unix_s in [START_S + 600, START_S - 600, 30, 2_147_483_640, 4_294_967_290, 5_000_000_000] {
        let mut client = Client::new();
        let uptime = |client: &mut Client, expected: &str| {
            let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
            assert!(stats.contains(&format!("STAT uptime {expected}\r\n")), "{unix_s}: {stats}");
        };
        client.talk("set a 0 300 1|1|set b 0 3 1|1|set c 0 1700000060 1|1|", "STORED|STORED|STORED|");
        client.talk("mg a l|mg b|", "HD l0|HD|");
        client.partitions.set_wall_clock(unix_s - START_S);
        client.talk("mg a t l|mg b t|mg c t|", "HD t300 l0|HD t3|HD t60|");
        uptime(&mut client, "0");
        let dump = String::from_utf8(client.send(b"lru_crawler metadump all\r\n")).expect("text");
        let line = format!("key=a exp={} la={unix_s} ", unix_s + 300);
        assert!(dump.contains(&line), "{unix_s}: {dump}");
        // What is absolute is so by the wall clock of its store.
        let (soon_s, past_s) = (unix_s + 60, unix_s - 1);
        let expected = if soon_s > 2_592_000 { ("HD t60|", "EN|") } else { ("HD t90|", "HD t29|") };
        client.talk(&format!("ms d 1 T{soon_s}|1|mg d t|"), &format!("HD|{}", expected.0));
        client.talk(&format!("ms d 1 T{past_s}|1|mg d t|"), &format!("HD|{}", expected.1));
        client.partitions.wait(3);
        client.talk("mg b|mg a t|", "EN|HD t297|");
        client.talk("flush_all 5|", "OK|");
        client.partitions.set_wall_clock(START_S - unix_s);
        client.talk("mg a t|mg c t|", "HD t297|HD t57|");
        client.partitions.wait(5);
        client.talk("mg a|mg c|", "EN|EN|");
        uptime(&mut client, "8");
    }
}
