//! What an NBD client sends: the handshake, then requests. However it is cut, the answers are the same; what is let through lies in
//! the export; no memory is taken by a number of the client's.

use bridge::nbd::{
    Export, ExportFlags, Handshake, PAYLOAD_BYTES_MAX, Progress, REPLY_HEAD_BYTES_MAX, ReplyForm, ReplyHead,
    Request, STATE_HOLE, STATE_ZERO, Session, Task, TlsPolicy, extent_bytes, write_extents,
};

/// Most output for a byte of input: an option of 16 bytes lists both exports.
const OUTPUT_FACTOR: usize = 32;

fn exports() -> [Export; 2] {
    let flags = ExportFlags::BASE.with(ExportFlags::TRIM).with(ExportFlags::WRITE_ZEROES);
    let export = |name: &str, block_bytes: u32, flags| Export {
        name: name.into(),
        description: "namespace".into(),
        size_bytes: 1 << 30,
        block_bytes,
        preferred_bytes: 4096,
        whole_read_bytes_max: 4 << 20,
        flags,
        zeroes_fast: true,
    };
    [export("", 512, flags), export("2", 4096, ExportFlags::BASE.with(ExportFlags::READ_ONLY))]
}

/// Input: how the stream is cut, and whether clients use TLS (a byte), then its bytes; those of TLS are left out.
pub fn nbd_stream(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else { return };
    let policy = match *cut {
        0..0xc0 => TlsPolicy::Off,
        0xc0..0xe0 => TlsPolicy::Allowed,
        0xe0.. => TlsPolicy::Required,
    };
    let whole = run(stream, stream.len(), policy);
    let pieces = run(stream, usize::from(*cut) + 1, policy);
    assert_eq!(whole, pieces, "cut into pieces of {} bytes", usize::from(*cut) + 1);
    assert!(whole.0.len() <= 1024 + stream.len() * OUTPUT_FACTOR, "{} bytes of output", whole.0.len());
}

/// The output for a stream that arrives in pieces of this length, and whether it ended in a violation.
fn run(mut stream: &[u8], piece_bytes: usize, policy: TlsPolicy) -> (Vec<u8>, bool) {
    let exports = exports();
    let mut handshake = Handshake::new(policy);
    let mut has_tls = false;
    let mut output = Vec::new();
    let mut is_refused = false;
    while !stream.is_empty() {
        let mut piece = &stream[..piece_bytes.clamp(1, stream.len())];
        let before = piece.len();
        let progress = handshake.on_bytes(&mut piece, &exports);
        stream = &stream[before - piece.len()..];
        match progress {
            Ok(Progress::Waiting) => {
                assert!(piece.is_empty(), "bytes are left over while more are waited for");
            }
            Ok(Progress::StartTls) => {
                assert!(!has_tls && policy != TlsPolicy::Off);
                has_tls = true;
                handshake.on_tls();
            }
            // Each other client is refused once, as where no queue is left.
            Ok(Progress::Chosen { index: 1 }) if !is_refused => {
                is_refused = true;
                handshake.refuse("no queue", false);
            }
            Ok(Progress::Chosen { index }) => {
                assert!(has_tls || policy != TlsPolicy::Required);
                let session = handshake.accept(exports[index].clone()).expect("an export was chosen");
                output.append(&mut handshake.take_output());
                let is_good = transmit(&session, stream, &mut output);
                return (output, is_good);
            }
            Ok(Progress::Ended) => break,
            Err(_) => {
                output.append(&mut handshake.take_output());
                return (output, false);
            }
        }
        output.append(&mut handshake.take_output());
    }
    output.append(&mut handshake.take_output());
    (output, true)
}

/// Answers requests as if each command succeeded, without their data.
fn transmit(session: &Session, mut stream: &[u8], output: &mut Vec<u8>) -> bool {
    let form = session.form;
    loop {
        let request = match Request::from_bytes(form, stream) {
            Ok(Some(request)) => request,
            Ok(None) => return true,
            Err(_) => return false,
        };
        stream = &stream[Request::head_bytes(form)..];
        let Ok(payload_bytes) = session.payload_bytes(&request) else { return false };
        let Request { cookie, offset, length, .. } = request;
        let head = match session.judge(&request) {
            Ok(Task::Disconnect) => return true,
            Ok(Task::Flush) => ReplyHead::done(form, cookie, offset),
            Ok(task) => {
                let block_bytes = u64::from(session.export.block_bytes);
                assert!(
                    length > 0 && length.is_multiple_of(block_bytes) && offset.is_multiple_of(block_bytes)
                );
                assert!(offset + length <= session.export.size_bytes, "{request:?} lies outside");
                match task {
                    Task::Read { is_whole } => {
                        let limit =
                            if is_whole { session.export.whole_read_bytes_max } else { PAYLOAD_BYTES_MAX };
                        assert!(length <= limit.into(), "{request:?} is too long");
                        ReplyHead::data(
                            form,
                            cookie,
                            offset,
                            offset,
                            u32::try_from(length).expect("limited"),
                            true,
                        )
                    }
                    Task::Write { .. } => {
                        assert_eq!(payload_bytes, length, "a write has its data");
                        assert!(length <= PAYLOAD_BYTES_MAX.into(), "{request:?} is too long");
                        ReplyHead::done(form, cookie, offset)
                    }
                    Task::BlockStatus { is_single } => {
                        assert!(session.has_block_status && form != ReplyForm::Simple);
                        // Data at the first half of each MiB.
                        let (range, data) = (
                            offset..offset + length,
                            (0..1 << 10).map(|mib: u64| mib << 20..(mib << 20) + (1 << 19)),
                        );
                        let data = data.filter(|part| part.end > offset);
                        let mut extents = [0; 256];
                        let bytes = write_extents(
                            form,
                            range,
                            data,
                            STATE_HOLE | STATE_ZERO,
                            is_single,
                            &mut extents,
                        );
                        assert!(bytes >= extent_bytes(form) && (!is_single || bytes == extent_bytes(form)));
                        let head = ReplyHead::extents(
                            form,
                            cookie,
                            offset,
                            1,
                            u32::try_from(bytes).expect("256 at most"),
                        );
                        output.extend_from_slice(head.as_bytes());
                        output.extend_from_slice(&extents[..bytes]);
                        continue;
                    }
                    _ => ReplyHead::done(form, cookie, offset),
                }
            }
            Err(refusal) => ReplyHead::failed(form, cookie, offset, refusal),
        };
        assert!(!head.as_bytes().is_empty() && head.as_bytes().len() <= REPLY_HEAD_BYTES_MAX);
        output.extend_from_slice(head.as_bytes());
        let payload_bytes = usize::try_from(payload_bytes).expect("limited").min(stream.len());
        stream = &stream[payload_bytes..];
    }
}
