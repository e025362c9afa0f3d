//! Conversations with a partition that refuses a command.

use super::*;

/// The answer of a partition that does not execute a command.
const REFUSAL: Refusal = Refusal { line: b"SERVER_ERROR out of space\r\n", status: 0x82 };

impl Client {
    /// Sends a request whose keys have the other partition, which refuses the first command that it gets and executes
    /// the others. Returns the output.
    fn send_refused(&mut self, said: &[u8]) -> String {
        self.session.on_bytes(&mut self.partitions, said);
        let Some(Sent::To(_, batch)) = self.partitions.sent.first() else { panic!("nothing was sent") };
        let mut refused = None;
        batch.for_each(|_, id, _, _| refused = Some(id));
        self.partitions.sent.remove(0);
        self.session.on_refused(refused.expect("a command"), REFUSAL);
        self.partitions.deliver(&mut self.session);
        let output = String::from_utf8_lossy(self.session.output()).into_owned();
        self.session.on_sent(output.len());
        output
    }
}

/// Keys of the second of two partitions.
fn elsewhere() -> [String; 2] {
    let mut client = Client::with(2);
    let keys = (0..).map(|at| format!("key-{at}"));
    let mut keys = keys.filter(|key| {
        client.session.on_bytes(&mut client.partitions, format!("delete {key}\r\n").as_bytes());
        !std::mem::take(&mut client.partitions.sent).is_empty()
    });
    std::array::from_fn(|_| keys.next().expect("half of all"))
}

#[test]
fn a_refused_command_is_answered_once_and_the_client_keeps_step() {
    let [one, other] = elsewhere();
    for (said, answered) in [
        (format!("set {one} 0 0 1|v|set {other} 0 0 1|v|"), "SERVER_ERROR out of space|STORED|"),
        (format!("set {one} 0 0 1 noreply|v|set {other} 0 0 1|v|"), "STORED|"),
        (format!("ms {one} 1 q|v|incr {other} 1|"), "SERVER_ERROR out of space|NOT_FOUND|"),
        (format!("mg {one} v|mn|"), "SERVER_ERROR out of space|MN|"),
    ] {
        let mut client = Client::with(2);
        let output = client.send_refused(said.replace('|', "\r\n").as_bytes());
        assert_eq!(output, answered.replace('|', "\r\n"), "{said}");
        assert!(!client.session.is_closing(), "{said}");
    }
    // In the binary protocol too: a set, and a no-op behind it.
    let mut client = Client::with(2);
    let said = [packet(1, &[0; 8], one.as_bytes(), b"v", 0), packet(0x0a, &[], &[], &[], 0)].concat();
    client.session.on_bytes(&mut client.partitions, &said);
    let Some(Sent::To(_, batch)) = client.partitions.sent.pop() else { panic!("nothing was sent") };
    batch.for_each(|_, id, _, _| client.session.on_refused(id, REFUSAL));
    let answered: Vec<_> = responses(client.session.output()).into_iter().map(|one| (one.0, one.1)).collect();
    assert_eq!(answered, [(1, 0x82), (0x0a, 0)]);
}

#[test]
fn the_refusal_of_one_key_ends_a_line_of_keys_and_the_connection() {
    let [one, other] = elsewhere();
    for line in [format!("get {one} {other}"), format!("gat 5 {one}")] {
        let mut client = Client::with(2);
        assert_eq!(client.send(format!("set {other} 0 0 1\r\nv\r\n").as_bytes()), b"STORED\r\n");
        let output = client.send_refused(format!("{line}\r\nget {other}\r\nversion\r\n").as_bytes());
        assert_eq!(output, "SERVER_ERROR out of space\r\n", "{line}");
        assert!(client.session.is_closing() && !client.session.is_awaiting(), "{line}");
        assert_eq!(client.session.on_bytes(&mut client.partitions, b"version\r\n"), Progress::Close);
    }
}

#[test]
fn a_flush_that_one_partition_refuses_is_refused() {
    for (said, answered) in [
        ("flush_all|version|", "SERVER_ERROR out of space|VERSION"),
        ("flush_all noreply|version|", "VERSION"),
    ] {
        let mut client = Client::with(3);
        client.session.on_bytes(&mut client.partitions, said.replace('|', "\r\n").as_bytes());
        let Some(Sent::ToAll(id, ..)) = client.partitions.sent.pop() else { panic!("nothing was sent") };
        for refusal in [Some(REFUSAL), None] {
            let stats = PartitionStats { refusal, ..PartitionStats::default() };
            client.session.on_stats(&mut client.partitions, id, &stats);
        }
        let output = String::from_utf8_lossy(client.session.output()).into_owned();
        assert!(output.starts_with(&answered.replace('|', "\r\n")), "{output}");
    }
}
