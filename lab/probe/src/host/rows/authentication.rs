//! H19: a target that requires authentication and fails to authenticate itself.

use std::sync::Mutex;

use wire::fabrics::ConnectResult;

use super::prelude::*;

/// Message ids of the host.
const REPLY: [u8; 2] = [1, 2];
const FAILURE: [u8; 2] = [0, 0xF0];

/// The target's messages.
#[derive(Clone, Copy, Debug)]
struct Deed {
    /// The challenge from byte 6 on, without the transaction id.
    challenge: fn() -> Vec<u8>,
    /// The answer to a Reply: type, id, and the bytes after the transaction id.
    answer: fn() -> Vec<u8>,
}

/// A valid SHA-256 challenge without a Diffie-Hellman group.
fn right_challenge() -> Vec<u8> {
    challenge(32, 1, 0, 0, 32)
}

fn challenge(hash_bytes: u8, hash: u8, group: u8, public_bytes: u16, length: usize) -> Vec<u8> {
    let mut rest = vec![hash_bytes, 0, hash, group];
    rest.extend_from_slice(&public_bytes.to_le_bytes());
    rest.extend_from_slice(&1_u32.to_le_bytes());
    rest.resize(10 + length, 0x5C);
    rest
}

/// A Success1 message, with a response of this length or none.
fn success(hash_bytes: u8, validity: u8, length: usize) -> Vec<u8> {
    let mut message = vec![1, 3, hash_bytes, 0, validity];
    message.resize(2 + 10 + length, 0);
    message[12..].fill(0x77);
    message
}

/// State of the exchange on the connection under test.
#[derive(Default)]
struct Talk {
    transaction: [u8; 2],
    last: [u8; 2],
}

fn asking(name: &str, deed: Deed) -> Case {
    let talk = Mutex::new(Talk::default());
    case(
        name,
        // Whether or not the host can authenticate itself, it must not accept this target.
        Right::Fails,
        Box::new(move |session, event| {
            let Event::Command { sqe, data } = event else { return Ok(Then::AsUsual) };
            if sqe.opcode != AdminOpcode::FABRICS.raw() {
                return Ok(Then::AsUsual);
            }
            let mut talk = talk.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match sqe.fctype() {
                FabricsType::CONNECT => {
                    let reply = session.controller.connect(session.stage, sqe, data)?;
                    let required = ConnectResult::default().with_authentication_required(true);
                    session.complete(sqe, reply.status, reply.result | u64::from(required.bits()));
                }
                FabricsType::AUTHENTICATION_SEND => {
                    let message = match sqe.dptr.classify() {
                        DataPointer::Transport { length } => match session.ask(sqe, 0, length)? {
                            Some(message) => message,
                            None => return Ok(Then::End),
                        },
                        _ => data.clone(),
                    };
                    holds(message.len() >= 8, "the host sends a message of less than 8 bytes")?;
                    talk.last = [message[0], message[1]];
                    talk.transaction = [message[4], message[5]];
                    session.complete(sqe, Status::SUCCESS, 0);
                    if talk.last == FAILURE {
                        return Ok(Then::End);
                    }
                }
                FabricsType::AUTHENTICATION_RECEIVE => {
                    let [low, high] = talk.transaction;
                    let message = if talk.last == REPLY {
                        let answer = (deed.answer)();
                        [&answer[..2], &[0, 0, low, high], &answer[2..]].concat()
                    } else {
                        [&[1, 1, 0, 0, low, high][..], &(deed.challenge)()].concat()
                    };
                    session.send_data(sqe, &message);
                    session.complete(sqe, Status::SUCCESS, 0);
                }
                _ => return Ok(Then::AsUsual),
            }
            Ok(Then::GoOn)
        }),
    )
    .every_time()
}

pub(super) fn cases() -> Check<Vec<Case>> {
    let right = Deed { challenge: right_challenge, answer: || success(32, 1, 32) };
    let with_challenge = |challenge: fn() -> Vec<u8>| Deed { challenge, ..right };
    let with_answer = |answer: fn() -> Vec<u8>| Deed { answer, ..right };
    Ok(vec![
        asking("a response that is wrong", right),
        asking("no response", with_answer(|| success(32, 0, 0))),
        asking("half a response", with_answer(|| success(32, 1, 16))),
        asking("a response of another length", with_answer(|| success(64, 1, 64))),
        asking("a failure without a reason", with_answer(|| vec![0, 0xF1, 0, 0])),
        asking("another challenge", with_answer(|| [vec![1, 1], right_challenge()].concat())),
        asking("HL 0", with_challenge(|| challenge(0, 1, 0, 0, 0))),
        asking("HL 255", with_challenge(|| challenge(255, 1, 0, 0, 255))),
        asking("a hash that was not offered", with_challenge(|| challenge(32, 77, 0, 0, 32))),
        asking("a group that was not offered", with_challenge(|| challenge(32, 1, 99, 256, 32 + 256))),
        asking("a group without its value", with_challenge(|| challenge(32, 1, 1, 0, 32))),
        asking("a value of FFFFh bytes", with_challenge(|| challenge(32, 1, 1, 0xFFFF, 32))),
        asking("a challenge of 8 bytes", with_challenge(|| vec![32, 0])),
        asking("a challenge beyond the buffer", with_challenge(|| challenge(32, 1, 5, 0xFFF0, 64 << 10))),
    ])
}
