//! Conversations of watchers.

use super::*;

/// Opens a watcher beside a client.
fn watcher(client: &mut Client, kinds: &str) -> Session {
    let mut watcher = Session::new(ListenerSettings::default());
    let line = format!("watch {kinds}\r\nget ignored\r\n");
    assert_eq!(watcher.on_bytes(&mut client.partitions, line.as_bytes()), Progress::Open);
    assert_eq!(taken(&mut watcher), "OK\r\n");
    client.partitions.end_turn(&mut watcher);
    watcher
}

/// Takes all lines of a watcher.
fn taken(watcher: &mut Session) -> String {
    let text = watcher.output().to_vec();
    watcher.on_sent(text.len());
    String::from_utf8(text).expect("text")
}

/// The events of the last turn, without their times, numbers and classes.
fn events(client: &mut Client, watcher: &mut Session) -> Vec<String> {
    client.partitions.end_turn(watcher);
    let lines = taken(watcher);
    let without_class = |line: &str| line.replace(" clsid=1", "").replace(" clsid=0", "");
    lines
        .lines()
        .map(|line| {
            assert!(line.starts_with("ts=1700000000.5 gid="), "{line}");
            without_class(line.splitn(3, ' ').last().expect("fields"))
        })
        .collect()
}

#[test]
fn a_watcher_gets_a_line_for_each_event_that_it_watches() {
    let mut client = Client::new();
    client.talk("set old 0 0 2|11|", "STORED|");
    let mut watcher = watcher(&mut client, "fetchers mutations deletions");
    client.talk("get nix|get old|set k#y 5 100 4 noreply|abcd|mn|", "END|VALUE old 0 2|11|END|MN|");
    assert_eq!(
        events(&mut client, &mut watcher),
        [
            "type=item_get key=nix status=not_found cfd=40 size=0",
            "type=item_get key=old status=found cfd=40 size=2",
            "type=item_get key=k%23y status=not_found cfd=40 size=0",
            "type=item_store key=k%23y status=stored cmd=set ttl=100 cfd=40 size=4",
        ]
    );
    client.talk("add old 0 0 1|x|cas old 0 0 1 99999|x|append old 0 0 1|x|", "NOT_STORED|EXISTS|STORED|");
    let stores: Vec<_> = events(&mut client, &mut watcher).into_iter().skip(1).step_by(2).collect();
    assert_eq!(
        stores,
        [
            "type=item_store key=old status=not_stored cmd=add ttl=0 cfd=40 size=1",
            "type=item_store key=old status=exists cmd=cas ttl=0 cfd=40 size=1",
            "type=item_store key=old status=stored cmd=append ttl=0 cfd=40 size=3",
        ]
    );
    client.talk("delete nix|delete old|md k#y I|md k#y|", "NOT_FOUND|DELETED|HD|HD|");
    let deletions = events(&mut client, &mut watcher);
    let deletions: Vec<_> = deletions.iter().filter(|line| line.starts_with("type=deleted")).collect();
    assert_eq!(deletions, ["type=deleted key=old cmd=delete size=3", "type=deleted key=k%23y cmd=md size=4"]);
    // Counters that follow each other are executed one by one, and so are keys.
    client.talk("set n 0 0 2|41|incr n 1|incr n 1|gets n nix|", "STORED|42|43|VALUE n 0 2 4|43|END|");
    assert_eq!(events(&mut client, &mut watcher).len(), 6);
    client.talk("set n 0 1 2|41|", "STORED|");
    client.partitions.wait(2);
    client.talk("get n|", "END|");
    let last = events(&mut client, &mut watcher).pop().expect("the get");
    assert_eq!(last, "type=item_get key=n status=expired cfd=40 size=0");
    let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
    assert!(stats.contains("STAT log_watchers 1\r\n") && stats.contains("STAT get_expired 1\r\n"), "{stats}");
    drop(watcher);
    client.talk("get n|", "END|");
    assert!(String::from_utf8(client.send(b"stats\r\n")).expect("text").contains("STAT log_watchers 0\r\n"));
}

#[test]
fn events_of_all_partitions_reach_a_watcher() {
    let mut client = Client::with(3);
    let mut watcher = watcher(&mut client, "m");
    for at in 0..100 {
        client.talk(&format!("set key{at} 0 0 1|x|"), "STORED|");
    }
    let events = events(&mut client, &mut watcher);
    assert_eq!(events.len(), 100);
    assert!(["cfd=40 ", "cfd=41 ", "cfd=42 "].iter().all(|cfd| events.iter().any(|line| line.contains(cfd))));
}

#[test]
fn evictions_are_told_with_what_is_known_of_the_pair() {
    let mut client = Client::new();
    let mut watcher = watcher(&mut client, "evictions");
    let mut lines = Vec::new();
    for at in 0..2000 {
        let line = format!("set key-number-{at} 0 1000 4000|{}|", "v".repeat(4000));
        client.talk(&line, "STORED|");
        lines.extend(events(&mut client, &mut watcher));
    }
    let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
    assert!(lines.len() > 500 && stats.contains(&format!("STAT evictions {}\r\n", lines.len())), "{stats}");
    let known = |line: &String| {
        line.starts_with("type=eviction key=key-number-")
            && line.ends_with(" fetch=no ttl=1000 la=0 size=4000")
    };
    assert!(lines.iter().all(known), "{lines:?}");
}

#[test]
fn watch_is_refused_behind_other_answers_and_for_other_kinds() {
    let mut client = Client::new();
    client.talk(
        "mn|watch|watch x|watch fetchers nix|",
        "MN|ERROR cannot pipeline other commands before watch|ERROR|ERROR|",
    );
    client.talk("watch|", "OK|");
    client.talk("get a|version|", "");
}
