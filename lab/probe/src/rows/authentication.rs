//! Section 6: authentication by a host without keys: no message here needs one.
//!
//! A target that requires authentication must answer invalid messages with AUTH_Failure1 and grant no access; one that
//! does not must refuse the same messages.

use wire::fabrics::AuthenticationCommand;

use super::prelude::*;
use crate::rows::authentication_messages::{
    AUTH_FAILURE, CHALLENGE, Challenge, FFDHE_2048, FFDHE_8192, Negotiate, Reply, SUCCESS, common,
    decremented,
};
use crate::rows::queue_setup::discovery;

pub(super) const ROWS: &[TargetRow] = &[
    row("A1", before),
    row("A2", unasked),
    row("A3", wrong_fields),
    row("A4", odd_negotiates),
    row("A5", nothing_in_common),
    row("A6", secure_channels),
    row("A7", odd_replies),
    row("A8", public_values),
    row("A9", wrong_responses),
    row("A10", wrong_order),
    row("A11", short_receives),
    row("A12", long_receives),
    row("A13", again_and_again),
    row("A14", unfinished),
    row("A15", replays),
    row("A16", reflections),
    row("A17", similar_names),
    row("A18", flood),
    row("A19", |_| skipped("secrets are part of the target's configuration: no bytes from here can be one")),
    row("A20", both_directions),
];

/// Statuses with which a target without authentication may refuse its commands.
const UNWANTED: [Status; 4] = [
    Status::INVALID_FIELD,
    Status::INVALID_OPCODE,
    Status::COMMAND_SEQUENCE_ERROR,
    Status::DATA_SGL_LENGTH_INVALID,
];

/// Reason codes of AUTH_Failure1.
mod reason {
    pub(super) const FAILED: u8 = 1;
    pub(super) const PROTOCOL: u8 = 2;
    pub(super) const SECURE_CHANNEL: u8 = 3;
    pub(super) const HASH: u8 = 4;
    pub(super) const GROUP: u8 = 5;
    pub(super) const PAYLOAD: u8 = 6;
    pub(super) const MESSAGE: u8 = 7;
}

/// Maximum length of a message.
const ROOM: u32 = 4096;

/// A queue that must authenticate, or would have to if the target required it.
struct Talk {
    queue: Queue,
    is_asked: bool,
}

impl Talk {
    /// For messages of which a target may expect the whole transaction.
    fn new(peer: &Target) -> Check<Self> {
        let (talk, is_channel_demanded) = Self::begin(peer)?;
        if is_channel_demanded { skip_demand() } else { Ok(talk) }
    }

    /// Connects. Returns also whether the target demands a secure channel.
    fn begin(peer: &Target) -> Check<(Self, bool)> {
        let mut queue = peer.host().queue(Digests::empty())?;
        let answer = peer.host().connect_admin(&mut queue)?;
        let result = ConnectResult::from_bits(answer.cqe.dw0());
        Ok((Self { queue, is_asked: result.authentication_required() }, result.secure_channel_required()))
    }

    /// Sends a message. The command itself must succeed even if the message is wrong, unless the target requires no
    /// authentication.
    fn send(&mut self, message: &[u8]) -> Check {
        let length = u32::try_from(message.len()).expect("short");
        let sqe = AuthenticationCommand::new(length).to_send_sqe();
        let answer = self.queue.run(sqe, Move::InCapsule(message)).about("Send")?;
        if self.is_asked {
            expect_status(&answer, &[Status::SUCCESS]).about("Send")
        } else {
            expect_status(&answer, &UNWANTED).about("Send where no authentication is required")
        }
    }

    /// Receives a message; `None` if the target requires no authentication.
    fn receive(&mut self) -> Check<Option<Vec<u8>>> {
        let sqe = AuthenticationCommand::new(ROOM).to_receive_sqe();
        let answer = self.queue.run(sqe, Move::Back(ROOM)).about("Receive")?;
        if self.is_asked {
            expect_status(&answer, &[Status::SUCCESS]).about("Receive")?;
            return Ok(Some(answer.data));
        }
        expect_status(&answer, &UNWANTED).about("Receive where no authentication is required")?;
        Ok(None)
    }

    /// Sends this message and expects AUTH_Failure1 with one of these reasons.
    fn fails(&mut self, message: &[u8], reasons: &[u8]) -> Check {
        self.send(message)?;
        if let Some(answer) = self.receive()? {
            holds(answer.len() >= 8, format!("a message of {} bytes", answer.len()))?;
            holds(answer[..2] == AUTH_FAILURE, format!("message {:#04x}, not a failure", answer[1]))?;
            holds(answer[6] == 1, format!("reason code {}", answer[6]))?;
            holds(reasons.contains(&answer[7]), format!("reason {:02}, not {reasons:02?}", answer[7]))?;
            holds(answer[8..].iter().all(|byte| *byte == 0), "bytes behind the message: of its memory?")?;
        }
        self.is_shut()
    }

    /// Before authentication only authentication commands are answered; if none is required, all are.
    fn is_shut(&mut self) -> Check {
        let answer = self.queue.run(Sqe::property_get(Property::CAP), Move::None);
        match (self.is_asked, answer) {
            (true, Err(Finding::Differs(_))) => Ok(()), // The target has closed the connection.
            (true, Ok(answer)) => {
                expect_status(&answer, &[Status::AUTHENTICATION_REQUIRED]).about("a command after that")
            }
            (false, Ok(answer)) => expect_status(&answer, &[Status::SUCCESS]).about("a command after that"),
            (_, Err(finding)) => Err(finding.about("a command after that")),
        }
    }

    /// Negotiates correctly and returns the challenge; a made-up one if the target requires no authentication.
    fn challenged(&mut self, negotiate: &Negotiate) -> Check<Challenge> {
        self.send(&negotiate.bytes())?;
        match self.receive()? {
            None => Ok(Challenge::made_up()),
            Some(message) => match Challenge::read(&message) {
                Some(challenge) if message[..2] == CHALLENGE => Ok(challenge),
                _ if message.starts_with(&AUTH_FAILURE) && message.get(7) == Some(&reason::GROUP) => {
                    skipped("the target does not use this group")
                }
                _ => differs("no challenge that could be one"),
            },
        }
    }
}

/// For a target that demands a secure channel: most Negotiates here have SC_C 0, which it refuses before anything else.
fn skip_demand<T>() -> Check<T> {
    skipped("the target demands a secure channel (ASCR), and these messages ask for none")
}

/// On a new connection, this Negotiate must fail.
fn negotiate_fails(peer: &Target, what: &str, message: &[u8], reasons: &[u8]) -> Check {
    Talk::new(peer)?.fails(message, reasons).about(what)
}

/// On a new connection, the Reply made from the challenge must fail.
fn reply_fails(
    peer: &Target,
    what: &str,
    negotiate: &Negotiate,
    make: impl Fn(&Challenge) -> Vec<u8>,
    reasons: &[u8],
) -> Check {
    let mut talk = Talk::new(peer)?;
    let challenge = talk.challenged(negotiate).about(what)?;
    talk.fails(&make(&challenge), reasons).about(what)
}

fn before(peer: &Target) -> Check {
    let (mut talk, _) = Talk::begin(peer)?;
    talk.is_shut().about("Property Get")?;
    if talk.is_asked {
        let command = IdentifyCommand { cns: Cns::CONTROLLER, ..IdentifyCommand::default() };
        let refused = [Status::AUTHENTICATION_REQUIRED];
        let moves = Move::Back(IDENTIFY_BYTES);
        talk.queue.must_end(command.to_sqe(Nsid::NONE), moves, &refused).about("Identify")?;
    }
    Ok(())
}

fn unasked(peer: &Target) -> Check {
    let message = [0_u8; 256];
    let try_on = |queue: &mut Queue, what: &str| {
        let send = AuthenticationCommand::new(256).to_send_sqe();
        let answer = queue.run(send, Move::InCapsule(&message)).about(format!("Send on {what}"))?;
        expect_status(&answer, &[&UNWANTED[..], &[Status::SUCCESS]].concat())
            .about(format!("Send on {what}"))?;
        let receive = AuthenticationCommand::new(256).to_receive_sqe();
        let answer = queue.run(receive, Move::Back(256)).about(format!("Receive on {what}"))?;
        expect_status(&answer, &[&UNWANTED[..], &[Status::SUCCESS]].concat())
            .about(format!("Receive on {what}"))
    };
    let (mut admin, _) = peer.admin(Digests::empty())?;
    try_on(&mut admin, "the admin queue")?;
    if peer.disk().is_ok() {
        try_on(&mut peer.io(Digests::empty())?, "an I/O queue")?;
    }
    if let Ok(mut queue) = discovery(peer) {
        try_on(&mut queue, "the discovery controller")?;
    }
    Ok(())
}

fn wrong_fields(peer: &Target) -> Check {
    let mut admin = peer.host().queue(Digests::empty())?;
    peer.host().connect_admin(&mut admin)?;
    let message = [0_u8; 256];
    let right = AuthenticationCommand::new(256);
    for (what, command) in [
        ("SECP", AuthenticationCommand { secp: 0, ..right }),
        ("SPSP0", AuthenticationCommand { spsp0: 0, ..right }),
        ("SPSP1", AuthenticationCommand { spsp1: 2, ..right }),
        ("length 0", AuthenticationCommand { length: 0, ..right }),
        ("a length that is not the SGL's", AuthenticationCommand { length: 512, ..right }),
        ("4 GiB", AuthenticationCommand { length: u32::MAX, ..right }),
    ] {
        let answer = admin.run(command.to_send_sqe(), Move::InCapsule(&message)).about(what)?;
        expect_status(&answer, &UNWANTED).about(format!("Send with {what}"))?;
        let answer = admin.run(command.to_receive_sqe(), Move::Back(256)).about(what)?;
        expect_status(&answer, &UNWANTED).about(format!("Receive with {what}"))?;
    }
    Ok(())
}

fn odd_negotiates(peer: &Target) -> Check {
    let right = Negotiate::default().bytes();
    for length in [8, 12, 16, 40, 68] {
        negotiate_fails(peer, &format!("{length} bytes"), &right[..length], &[reason::PAYLOAD])?;
    }
    for (what, at, value) in [
        ("no descriptor", 7, 0),
        ("two descriptors", 7, 2),
        ("255 descriptors", 7, 255),
        ("another protocol", 8, 9),
        ("31 hashes", 10, 31),
        ("255 hashes", 10, 255),
        ("31 groups", 11, 31),
        ("255 groups", 11, 255),
    ] {
        let mut message = right.clone();
        message[at] = value;
        negotiate_fails(peer, what, &message, &[reason::PAYLOAD, reason::PROTOCOL])?;
    }
    Ok(())
}

fn nothing_in_common(peer: &Target) -> Check {
    for (what, hashes, groups, right) in [
        ("no hash", &[][..], &[0, 1][..], reason::HASH),
        ("hashes that are none", &[0, 4, 9, 255], &[0, 1], reason::HASH),
        ("no group", &[1, 2, 3], &[], reason::GROUP),
        ("groups that are none", &[1, 2, 3], &[6, 9, 255], reason::GROUP),
        ("neither", &[7], &[77], reason::HASH),
    ] {
        let negotiate =
            Negotiate { hashes: hashes.to_vec(), groups: groups.to_vec(), ..Negotiate::default() };
        negotiate_fails(peer, what, &negotiate.bytes(), &[right])?;
    }
    // Thirty repetitions of the same ids count as one.
    let many = Negotiate { hashes: vec![1; 30], groups: vec![1; 30], ..Negotiate::default() };
    let mut talk = Talk::new(peer)?;
    talk.send(&many.bytes()).about("thirty of the same")?;
    talk.receive().about("thirty of the same")?;
    talk.is_shut()
}

fn secure_channels(peer: &Target) -> Check {
    for secure_channel in [1, 3, 4, 5, 0x80, 0xFF] {
        let negotiate = Negotiate { secure_channel, ..Negotiate::default() };
        let (mut talk, _) = Talk::begin(peer)?;
        let reasons = [reason::SECURE_CHANNEL];
        talk.fails(&negotiate.bytes(), &reasons).about(format!("SC_C {secure_channel}"))?;
    }
    // A TLS key cannot be derived without a Diffie-Hellman exchange.
    let negotiate = Negotiate { secure_channel: 2, groups: vec![0], ..Negotiate::default() };
    let reasons = [reason::SECURE_CHANNEL, reason::GROUP];
    Talk::begin(peer)?.0.fails(&negotiate.bytes(), &reasons).about("SC_C 2 without a group")
}

fn odd_replies(peer: &Target) -> Check {
    let without_group = Negotiate { groups: vec![0], ..Negotiate::default() };
    for negotiate in [&without_group, &Negotiate::with_group(FFDHE_2048)] {
        for (what, length) in
            [("8 bytes short", -8_i32), ("a half", -40), ("4 bytes long", 4), ("1 KiB long", 1024)]
        {
            let make = |challenge: &Challenge| {
                let mut bytes = Reply::to(challenge).bytes();
                let length = i32::try_from(bytes.len()).expect("short") + length;
                bytes.resize(usize::try_from(length).expect("longer than that"), 0);
                bytes
            };
            reply_fails(peer, what, negotiate, make, &[reason::PAYLOAD])?;
        }
        for (what, at, bytes) in [
            ("HL 0", 6, &[0][..]),
            ("HL 16", 6, &[16]),
            ("HL 255", 6, &[255]),
            ("DHVLEN 4", 10, &[4, 0]),
            ("DHVLEN 255", 10, &[255, 0]),
            ("DHVLEN FFFFh", 10, &[255, 255]),
        ] {
            let make = |challenge: &Challenge| {
                let mut reply = Reply::to(challenge).bytes();
                reply[at..at + bytes.len()].copy_from_slice(bytes);
                reply
            };
            reply_fails(peer, what, negotiate, make, &[reason::PAYLOAD])?;
        }
    }
    Ok(())
}

fn public_values(peer: &Target) -> Check {
    let prime = FFDHE_2048.prime();
    let one = [vec![0; prime.len() - 1], vec![1]].concat();
    let reasons = [reason::GROUP, reason::PAYLOAD];
    for (what, value) in [
        ("0", vec![0; prime.len()]),
        ("1", one),
        ("p - 1", decremented(&prime)),
        ("p", prime.clone()),
        ("above p", vec![0xFF; prime.len()]),
    ] {
        let make =
            |challenge: &Challenge| Reply { public_value: value.clone(), ..Reply::to(challenge) }.bytes();
        reply_fails(peer, what, &Negotiate::with_group(FFDHE_2048), make, &reasons)?;
    }
    Ok(())
}

fn wrong_responses(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let (failed, payload) = (&[reason::FAILED][..], &[reason::PAYLOAD][..]);
    type Change = fn(Reply) -> Reply;
    let cases: [(&str, Change, &[u8]); 4] = [
        ("another transaction", |reply| Reply { transaction: reply.transaction ^ 0x5A5A, ..reply }, payload),
        ("another response", |reply| reply, failed),
        ("CVALID 2", |reply| Reply { validity: 2, ..reply }, payload),
        ("CVALID without a number", |reply| Reply { validity: 1, sequence: 0, ..reply }, &[1, 6]),
    ];
    for (what, change, reasons) in cases {
        let make = |challenge: &Challenge| change(Reply::to(challenge)).bytes();
        reply_fails(peer, what, &negotiate, make, reasons)?;
    }
    Ok(())
}

fn wrong_order(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let made_up = Challenge::made_up();
    let messages = [
        ("Negotiate", negotiate.bytes()),
        ("Challenge", [&common(1, 1, negotiate.transaction)[..], &[0; 42]].concat()),
        ("Reply", Reply::to(&made_up).bytes()),
        ("Success1", [&common(1, 3, negotiate.transaction)[..], &[0; 10]].concat()),
        ("Success2", [&common(1, 4, negotiate.transaction)[..], &[0; 10]].concat()),
        ("Failure1", [&common(0, 0xF1, negotiate.transaction)[..], &[1, 1]].concat()),
        ("Failure2", [&common(0, 0xF0, negotiate.transaction)[..], &[1, 1]].concat()),
        ("a message of no kind", [&common(9, 0x99, negotiate.transaction)[..], &[0; 58]].concat()),
    ];
    for state in ["at first", "before its challenge is read", "when challenged", "after a failure"] {
        for (name, message) in &messages {
            let what = format!("{name} {state}");
            let mut talk = Talk::new(peer)?;
            match state {
                "at first" => {}
                "before its challenge is read" => talk.send(&negotiate.bytes())?,
                "when challenged" => drop(talk.challenged(&negotiate)?),
                _ => talk.fails(&[0xEE; 16], &[1, 2, 3, 4, 5, 6, 7])?,
            }
            // Starting again is right at first, and may be right later.
            match talk.send(message) {
                // The target closes the connection after a failure.
                Err(Finding::Differs(_)) if talk.is_asked && state == "after a failure" => continue,
                sent => sent.about(&what)?,
            }
            if let Some(answer) = talk.receive().about(&what)? {
                let kind = answer.get(..2).unwrap_or_default();
                let reason = answer.get(7).copied().unwrap_or_default();
                let is_failure =
                    kind == AUTH_FAILURE && (reason == reason::MESSAGE || (1..=6).contains(&reason));
                let is_begun = kind == CHALLENGE && *name == "Negotiate";
                holds(kind != SUCCESS, format!("{what}: success"))?;
                holds(is_failure || is_begun, format!("{what}: message {kind:02x?}, reason {reason:02}"))?;
            }
            talk.is_shut().about(&what)?;
        }
    }
    Ok(())
}

fn short_receives(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let whole = 16 + u32::from(Talk::new(peer)?.challenged(&negotiate)?.hash_bytes);
    for room in [1, 8, 15, 16, whole - 1] {
        let mut talk = Talk::new(peer)?;
        talk.send(&negotiate.bytes())?;
        let sqe = AuthenticationCommand::new(room).to_receive_sqe();
        let answer = talk.queue.run(sqe, Move::Back(room)).about(format!("{room} bytes of room"))?;
        expect_status(&answer, &UNWANTED).about(format!("{room} bytes of room"))?;
        talk.is_shut()?;
    }
    Ok(())
}

fn long_receives(peer: &Target) -> Check {
    for negotiate in
        [Negotiate { groups: vec![0], ..Negotiate::default() }, Negotiate::with_group(FFDHE_2048)]
    {
        let mut talk = Talk::new(peer)?;
        talk.send(&negotiate.bytes())?;
        let Some(message) = talk.receive()? else { continue };
        let Some(challenge) = Challenge::read(&message) else { return differs("no challenge") };
        let rest = message.get(challenge.length()..).unwrap_or_default();
        holds(rest.iter().all(|byte| *byte == 0), "bytes behind the message: of its memory?")?;
    }
    Ok(())
}

fn again_and_again(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let mut talk = Talk::new(peer)?;
    for _ in 0..1000 {
        talk.send(&negotiate.bytes())?;
    }
    let message = negotiate.bytes();
    let sqe = AuthenticationCommand::new(72).to_send_sqe();
    let cids: Vec<_> =
        (0..2).map(|_| talk.queue.submit(sqe, Move::InCapsule(&message))).collect::<Check<_>>()?;
    for cid in cids {
        let answer = talk.queue.finish(cid, &[]).about("two Sends at once")?;
        expect_status(&answer, &[&UNWANTED[..], &[Status::SUCCESS]].concat()).about("two Sends at once")?;
    }
    talk.is_shut()
}

fn unfinished(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    for round in 0..100 {
        let mut talk = Talk::new(peer)?;
        match round % 4 {
            0 => {}
            1 => talk.send(&negotiate.bytes())?,
            2 => drop(talk.challenged(&negotiate)?),
            _ => {
                let challenge = talk.challenged(&negotiate)?;
                talk.send(&Reply::to(&challenge).bytes())?;
            }
        }
        if round % 8 < 4 { talk.queue.link.reset() } else { drop(talk) }
    }
    Ok(())
}

fn replays(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let mut first = Talk::new(peer)?;
    let challenge = first.challenged(&negotiate)?;
    let reply = Reply::to(&challenge).bytes();
    first.fails(&reply, &[reason::FAILED])?;
    for _ in 0..4 {
        let mut talk = Talk::new(peer)?;
        let other = talk.challenged(&negotiate)?;
        let is_fresh = !talk.is_asked || other.value != challenge.value;
        holds(is_fresh, "two connections get the same challenge")?;
        talk.fails(&reply, &[reason::FAILED])?;
    }
    Ok(())
}

fn reflections(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let make = |challenge: &Challenge| {
        Reply {
            validity: 1,
            sequence: challenge.sequence,
            own: challenge.value.clone(),
            ..Reply::to(challenge)
        }
        .bytes()
    };
    reply_fails(peer, "C2 is C1", &negotiate, make, &[reason::FAILED, reason::PAYLOAD])
}

fn similar_names(peer: &Target) -> Check {
    let host = peer.host();
    let sqe = peer.host().connect_command(0, ENTRIES).to_sqe();
    let upper: Result<Nqn, _> = host.nqn.to_string().to_uppercase().replace("NQN.", "nqn.").parse();
    let name_bytes = host.nqn.to_string().len();
    let mut cases = Vec::new();
    if let Ok(upper) = &upper {
        let data = ConnectData::new(host.hostid, Cntlid::DYNAMIC, &host.subsystem, upper);
        cases.push(("capital letters", data));
    }
    let mut trailing = peer.host().connect_data(Cntlid::DYNAMIC);
    if let Some(rest) = trailing.hostnqn.get_mut(name_bytes + 1..) {
        rest.fill(b'x');
    }
    cases.push(("bytes behind the end", trailing));
    for (what, data) in cases {
        let mut queue = peer.host().queue(Digests::empty())?;
        let answer = queue.run(sqe, Move::InCapsule(data.as_bytes())).about(what)?;
        if !answer.status().is_success() {
            let rights = [Status::CONNECT_INVALID_HOST, Status::CONNECT_INVALID_PARAMETERS];
            expect_status(&answer, &rights).about(what)?;
            continue;
        }
        let result = ConnectResult::from_bits(answer.cqe.dw0());
        let is_asked = result.authentication_required();
        let is_right = is_asked == peer.connected.authentication_required()
            && result.secure_channel_required() == peer.connected.secure_channel_required();
        holds(is_right, format!("{what}: another host is not asked as this one is"))?;
        if result.secure_channel_required() {
            return skip_demand();
        }
        let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
        let mut talk = Talk { queue, is_asked };
        let challenge = talk.challenged(&negotiate).about(what)?;
        talk.fails(&Reply::to(&challenge).bytes(), &[reason::FAILED]).about(what)?;
    }
    Ok(())
}

fn flood(peer: &Target) -> Check {
    let negotiate = Negotiate::with_group(FFDHE_8192);
    for round in 0..100 {
        let mut talk = Talk::new(peer)?;
        // The most expensive single message.
        talk.send(&negotiate.bytes()).about(format!("attempt {round}"))?;
        if let Some(message) = talk.receive()?
            && let Some(challenge) = Challenge::read(&message)
        {
            talk.send(&Reply::to(&challenge).bytes())?;
            talk.receive()?;
        }
        talk.is_shut()?;
    }
    Ok(())
}

fn both_directions(peer: &Target) -> Check {
    let negotiate = Negotiate { groups: vec![0], ..Negotiate::default() };
    let make = |challenge: &Challenge| Reply { validity: 1, ..Reply::to(challenge) }.bytes();
    reply_fails(peer, "CVALID 1", &negotiate, make, &[reason::FAILED])
}
