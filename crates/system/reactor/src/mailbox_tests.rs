//! The mailbox on the system's descriptors.

use crate::mailbox::{Bell, Mailbox};

#[test]
fn messages_of_a_sender_arrive_in_order() {
    let mailbox = Mailbox::new().unwrap();
    let address = mailbox.address();
    std::thread::spawn(move || (0..1000).for_each(|n| assert!(address.post(n)))).join().unwrap();
    assert!((0..1000).all(|n| mailbox.next_message() == Some(n)));
    assert_eq!(mailbox.next_message(), None);
}

#[test]
fn only_a_sleeper_is_rung() {
    let mailbox = Mailbox::new().unwrap();
    let count = |bell: &Bell| {
        let mut bytes = [0; 8];
        rustix::io::read(bell, &mut bytes).map(|_| u64::from_ne_bytes(bytes)).unwrap_or(0)
    };
    mailbox.address().post(1);
    assert_eq!(count(mailbox.bell()), 0);
    mailbox.bell().announce_sleep();
    mailbox.address().post(2);
    mailbox.address().post(3);
    assert_eq!(count(mailbox.bell()), 1, "rung once for any number of messages");
}

#[test]
fn posting_to_a_reactor_that_is_gone_is_noticed() {
    let mailbox = Mailbox::new().unwrap();
    let address = mailbox.address();
    drop(mailbox);
    assert!(!address.post(1));
}
