//! Requests to all partitions: statistics, dumps, memory.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[test]
fn statistics_have_the_names_that_clients_read() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        client.talk("set a 0 0 1|1|get a b|", "STORED|VALUE a 0 1|1|END|");
        let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
        for line in
            ["STAT cmd_get 2", "STAT get_hits 1", "STAT curr_items 1", "STAT cmd_set 1", "STAT threads 1"]
        {
            assert!(stats.lines().any(|other| other == line), "{line} in {stats}");
        }
        assert!(stats.ends_with("END\r\n"));
        assert!(
            String::from_utf8(client.send(b"stats settings\r\n")).expect("text").contains("item_size_max")
        );
        client.talk("stats bogus|", "ERROR|");
        client.talk("stats sizes|", "STAT sizes_status disabled|END|");
        for (of, field) in
            [("items", "items:1:number 1"), ("slabs", "1:cmd_set 1"), ("slabs", "active_slabs 1")]
        {
            let stats = client.send(format!("stats {of}\r\n").as_bytes());
            let stats = String::from_utf8(stats).expect("text");
            assert!(stats.contains(&format!("STAT {field}\r\n")), "{field} in {stats}");
        }
        client.talk("stats detail off|stats detail dump|", "OK|END|");
        client.talk("stats detail on|", "CLIENT_ERROR stats detail not supported|");
        assert_eq!(client.send(b"stats detail\r\n"), b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    }
}

#[test]
fn connections_of_all_reactors_are_listed_in_order() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        let mut wanted = String::from("STAT 1000:addr unix:/run/keys|STAT 1000:state conn_listening|");
        for number in 40..40 + count {
            wanted += &format!("STAT {number}:addr unix:|STAT {number}:listen_addr unix:/run/keys|");
            wanted += &format!("STAT {number}:state conn_parse_cmd|STAT {number}:secs_since_last_cmd 3|");
        }
        client.talk("mn|stats conns|mn|stats conns|", &format!("MN|{wanted}END|MN|{wanted}END|"));
    }
}

#[test]
fn a_dump_has_every_key_once_and_commands_behind_it_wait() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        client.talk("lru_crawler metadump all|version|", &format!("OK|END|VERSION {VERSION}|"));
        let mut wanted: BTreeSet<String> = (0..2000).map(|at| format!("key{at}")).collect();
        for key in &wanted {
            client.talk(&format!("set {key} 7 100 {}|{}|", key.len() * 20, key.repeat(20)), "STORED|");
        }
        client.talk("mn|lru_crawler mgdump all|", "MN|ERROR cannot pipeline other commands before mgdump|");
        let keys = |dump: Vec<u8>| -> Vec<String> {
            let dump = String::from_utf8(dump).expect("text");
            let lines = dump.lines().filter_map(|line| line.strip_prefix("key="));
            lines.map(|line| line.split(' ').next().expect("a key").to_owned()).collect()
        };
        for class in ["all", "hash"] {
            let dump = client.send(format!("lru_crawler metadump {class}\r\nmn\r\n").as_bytes());
            assert!(dump.starts_with(b"OK\r\nkey=") && dump.ends_with(b"END\r\nMN\r\n"));
            let found = keys(dump);
            assert_eq!(found.len(), 2000, "each once");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted);
        }
        // Pairs in the index, keys that no line can have, and times.
        client.talk(
            "flush_all|set s 0 0 1|1|ms YSBiCg== 1 b F3|2|set x%/ 0 1700000500 2|22|",
            "OK|STORED|HD|STORED|",
        );
        let dump = String::from_utf8(client.send(b"lru_crawler metadump all\r\n")).expect("text");
        let mut lines: Vec<_> = dump.split('\n').filter(|line| line.starts_with("key=")).collect();
        lines.sort_unstable();
        assert!(lines[0].starts_with("key=a%20b%0A exp=-1 la=1700000000 cas="), "{lines:?}");
        assert!(lines[0].ends_with(" fetch=no cls=1 size=21 flags=3 "), "{lines:?}");
        assert!(lines[1].starts_with("key=s exp=-1 la=1700000000 cas=0 fetch=no cls=1 size="), "{lines:?}");
        assert!(lines[2].starts_with("key=x%25%2F exp=1700000500 la=1700000000 cas="), "{lines:?}");
        wanted = ["mg YSBiCg== b", "mg s", "mg x%/"].map(str::to_owned).into();
        let dump = String::from_utf8(client.send(b"lru_crawler mgdump all\r\n")).expect("text");
        let body =
            dump.strip_prefix("OK\r\n").and_then(|dump| dump.strip_suffix("EN\r\n")).expect("both ends");
        assert_eq!(body.lines().map(str::to_owned).collect::<BTreeSet<_>>(), wanted);
        client.talk(
            "lru_crawler metadump 7|lru_crawler metadump|",
            "BADCLASS invalid class id|CLIENT_ERROR not supported|",
        );
    }
}

#[test]
fn a_dump_of_the_crawler_is_the_only_one_while_its_client_takes_it() {
    const BUSY: &str = "BUSY currently processing crawler request|";
    let mut client = Client::new();
    client.talk("set a 0 0 1|1|", "STORED|");
    let mut other = Session::new(ListenerSettings::default());
    assert_eq!(other.on_bytes(&mut client.partitions, b"lru_crawler mgdump all\r\n"), Progress::Stalled);
    assert_eq!(other.output(), b"OK\r\n");
    client.talk("lru_crawler mgdump all|", BUSY);
    client.talk("lru_crawler metadump hash|", BUSY);
    client.talk("stats cachedump 1 0|mn|", "ITEM a [1 b; 0 s]|END|MN|");
    drop(other);
    client.talk("lru_crawler mgdump all|mn|", "OK|mg a|EN|MN|");
    client.talk("lru_crawler mgdump hash|", "OK|mg a|EN|");
    // One that does not take its dump keeps others from theirs for a while.
    let mut other = Session::new(ListenerSettings::default());
    other.on_bytes(&mut client.partitions, b"lru_crawler mgdump all\r\n");
    client.partitions.wait(9);
    client.talk("lru_crawler mgdump all|", BUSY);
    client.partitions.wait(1);
    client.talk("lru_crawler mgdump all|", "OK|mg a|EN|");
    drop(other);
    client.talk("lru_crawler mgdump all|", "OK|mg a|EN|");
}

#[test]
fn cachedump_lists_the_pairs_of_a_class_up_to_a_limit() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        client.talk("stats cachedump 1 0|stats cachedump 1 5|", "END|END|");
        let mut wanted = BTreeSet::new();
        for number in 0..700 {
            let (key, length) = (format!("key{number}"), number % 30);
            let (exptime, expires_s) = if number % 2 == 0 { (100, 1_700_000_100_u64) } else { (0, 0) };
            client.talk(&format!("set {key} 0 {exptime} {length}|{}|", "v".repeat(length)), "STORED|");
            wanted.insert(format!("ITEM {key} [{length} b; {expires_s} s]"));
        }
        // Keys that would not be a word of a line.
        client.talk("ms YSBi 1 b|1|ms YQpi 1 b|1|", "HD|HD|");
        let mut list = |limit: usize| {
            let answer = client.send(format!("mn\r\nstats cachedump 1 {limit}\r\nmn\r\n").as_bytes());
            let answer = String::from_utf8(answer).expect("text");
            let items = answer.strip_prefix("MN\r\n").and_then(|items| items.strip_suffix("END\r\nMN\r\n"));
            items.expect("both ends").lines().map(str::to_owned).collect::<Vec<_>>()
        };
        for limit in [1, 255, 256, 257, 600] {
            let items = list(limit);
            assert!(
                items.len() == limit && items.iter().all(|item| wanted.contains(item)),
                "{limit}: {items:?}"
            );
        }
        let items = list(0);
        assert_eq!((items.len(), items.into_iter().collect::<BTreeSet<_>>()), (700, wanted));
        client.talk("stats cachedump 2 0|stats cachedump 63 7|stats cachedump 0 0|", "END|END|END|");
        client.talk(
            "stats cachedump 64 0|stats cachedump 1|stats cachedump|stats cachedump 1 x|stats cachedump x 1|",
            "CLIENT_ERROR Illegal slab id|CLIENT_ERROR bad command line|CLIENT_ERROR bad command line|\
             CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|",
        );
        assert!(!client.session.needs_no_pairs(b"stats cachedump 1 0\r\n"));
        assert!(client.session.needs_no_pairs(b"stats items\r\nstats\r\n"));
    }
}

/// The fields of a `stats` answer.
fn fields(client: &mut Client) -> BTreeMap<String, String> {
    let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
    let fields = stats.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The file lists the kind of statistics and the field for each of memcached 1.6.45 with one pair. An exporter takes
/// what `stats items` and `stats slabs` say of a class for metrics of one kind, and is refused one that comes twice.
#[test]
fn the_fields_are_those_of_memcached_and_of_pins_each_once() {
    // Those that memcached has with an idle timeout, and built with TLS; and of pins, which it does not have.
    const MORE: [&str; 4] =
        ["general idle_kicks", "settings ssl_enabled", "general pinned_bytes", "general pinned_items"];
    let wanted = include_str!("../../tests/stats_of_memcached.txt").lines().chain(MORE);
    let wanted: BTreeSet<_> = wanted.map(str::to_owned).collect();
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        client.talk("set a 0 0 1|1|", "STORED|");
        for number in 0..2 {
            let (mut found, mut in_class) = (BTreeSet::new(), BTreeSet::new());
            for kind in ["general", "settings", "items", "slabs", "sizes"] {
                let of = if kind == "general" { "" } else { kind };
                let stats =
                    String::from_utf8(client.send(format!("stats {of}\r\n").as_bytes())).expect("text");
                for line in stats.strip_suffix("END\r\n").expect("an end").lines() {
                    let name = line.strip_prefix("STAT ").and_then(|line| line.split(' ').next());
                    let name = name.unwrap_or_else(|| panic!("{line}"));
                    assert!(found.insert(format!("{kind} {name}")), "{name} twice");
                    let is_new =
                        !name.contains(':') || in_class.insert(name.rsplit(':').next().map(str::to_owned));
                    assert!(is_new, "{name} of a class twice");
                }
            }
            assert_eq!(found, wanted);
            let value = "v".repeat(1000);
            (0..4000 * (1 - number)).for_each(|at| {
                client.send(format!("set key{at} 0 0 1000 noreply\r\n{value}\r\n").as_bytes());
            });
        }
    }
}

#[test]
fn reset_statistics_count_from_zero_and_a_flush_counts_once() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        client
            .talk("set a 0 1 1|1|set b 0 0 1|1|get a c|flush_all 50|", "STORED|STORED|VALUE a 0 1|1|END|OK|");
        client.partitions.wait(2);
        client.talk("get a|gets a|", "END|END|");
        let before = fields(&mut client);
        let read =
            |fields: &BTreeMap<String, String>, name: &str| fields[name].parse::<u64>().expect("a number");
        let counts = [
            "cmd_get",
            "get_hits",
            "get_misses",
            "get_expired",
            "cmd_set",
            "total_items",
            "cmd_flush",
            "reclaimed",
        ];
        assert_eq!(counts.map(|name| read(&before, name)), [4, 1, 3, 1, 2, 2, 1, 1]);
        client.talk("stats reset|", "RESET|");
        let after = fields(&mut client);
        assert_eq!(counts.map(|name| read(&after, name)), [0; 8]);
        assert_eq!(
            (read(&after, "curr_items"), read(&after, "limit_maxbytes")),
            (1, read(&before, "limit_maxbytes"))
        );
        client.talk("get b|", "VALUE b 0 1|1|END|");
        assert_eq!(read(&fields(&mut client), "get_hits"), 1);
    }
}

#[test]
fn the_memory_limit_changes_for_all_partitions_or_for_none() {
    for count in [1_usize, 3, IN_PLACE] {
        let mut client = Client::with(count);
        let limit = |client: &mut Client| {
            let stats = String::from_utf8(client.send(b"stats\r\nstats settings\r\n")).expect("text");
            let limits =
                stats.lines().filter(|line| line.contains(" limit_maxbytes ") || line.contains(" maxbytes "));
            let limits: Vec<u64> = limits.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
            assert_eq!(limits.first(), limits.last(), "{stats}");
            limits[0].div_ceil(1 << 20)
        };
        client.talk("set a 0 0 1|1|cache_memlimit 5|get a|", "STORED|OK|VALUE a 0 1|1|END|");
        assert_eq!(limit(&mut client), 5);
        client.talk("cache_memlimit 9 noreply|cache_memlimit 0 noreply|mn|", "MN|");
        assert_eq!(limit(&mut client), 9);
        client.talk("cache_memlimit 0|", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 1m|");
        client.talk(
            "cache_memlimit 1000000|cache_memlimit 2000000000|cache_memlimit|mn|",
            "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust|\
             MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes|ERROR|MN|",
        );
        assert_eq!(limit(&mut client), 9);
        for at in 0..count {
            while client.partitions.at(at).partition.processor.is_resizing() {
                assert_ne!(client.partitions.at(at).partition.processor.resize_step(), kv::ResizeStep::Waits);
            }
        }
        client.talk("get a|", "VALUE a 0 1|1|END|");
    }
}

#[test]
fn memory_that_is_not_evicted_is_not_taken_away() {
    for count in [1_usize, 2, IN_PLACE] {
        let keeping =
            Settings { eviction: kv::Eviction::None, memory_bytes: (8 << 20) / count, ..settings() };
        let mut client = Client::with(count);
        client.partitions = partitions(count, &keeping, ListenerSettings::default());
        let value = "v".repeat(10_000);
        for number in 0..400 {
            client.talk(&format!("set key{number} 0 0 10000|{value}|"), "STORED|");
        }
        let answer = String::from_utf8(client.send(b"cache_memlimit 3\r\n")).expect("text");
        let bytes = answer.strip_prefix("MEMLIMIT_ADJUST_FAILED ").and_then(|rest| rest.split(' ').next());
        let bytes: u64 = bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
        assert!((4_000_000..6_000_000).contains(&bytes), "{answer}");
        client.talk("cache_memlimit 7|cache_memlimit 9|", "OK|OK|");
        for number in 0..400 {
            client.talk(&format!("get key{number}|"), &format!("VALUE key{number} 0 10000|{value}|END|"));
        }
    }
}
