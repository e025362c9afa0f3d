//! Interrupt moderation of a device and of its queues: `struct ethtool_coalesce`, `struct ethtool_per_queue_op`.

use rustix::io::Errno;

use super::{Ioctl, is_unsupported, put_u32};
use crate::moderation::{Delay, Moderation, Moderations};
use crate::netlink::message::u32_at;

const GET: u32 = 0x0e;
const SET: u32 = 0x0f;
const PER_QUEUE: u32 = 0x4b;

/// Bytes of the structure of one queue, and before those of several.
const BYTES: usize = 92;
const PER_QUEUE_BYTES: usize = 8 + 512;
/// Queues that the kernel's mask has.
const QUEUE_COUNT_MAX: u16 = 4096;

const RECEIVE_US_AT: usize = 4;
const TRANSMIT_US_AT: usize = 20;
const ADAPTIVE_RECEIVE_AT: usize = 40;
const ADAPTIVE_TRANSMIT_AT: usize = 44;

/// A request for `queues`, or for the device; room for the answer, and where it begins.
fn request(command: u32, queues: Option<std::ops::Range<u16>>) -> (Vec<u8>, usize) {
    let Some(queues) = queues else {
        let mut request = vec![0; BYTES];
        put_u32(&mut request, 0, command);
        return (request, 0);
    };
    let mut request = vec![0; PER_QUEUE_BYTES + queues.len() * BYTES];
    put_u32(&mut request, 0, PER_QUEUE);
    put_u32(&mut request, 4, command);
    for queue in queues {
        // Words of 32 bits, in host order.
        let word_at = 8 + 4 * usize::from(queue / 32);
        let word = u32_at(&request, word_at).unwrap_or(0);
        put_u32(&mut request, word_at, word | 1 << (queue % 32));
    }
    (request, PER_QUEUE_BYTES)
}

fn read(answer: &[u8]) -> Moderation {
    let word = |at| u32_at(answer, at).unwrap_or(0);
    let delay = |us_at, adaptive_at| Delay { us: word(us_at), is_adaptive: word(adaptive_at) != 0 };
    Moderation {
        receive: delay(RECEIVE_US_AT, ADAPTIVE_RECEIVE_AT),
        transmit: delay(TRANSMIT_US_AT, ADAPTIVE_TRANSMIT_AT),
    }
}

/// Changes an answer to GET into a request that sets `wanted` and leaves all else.
fn write(settings: &mut [u8], wanted: Moderation) {
    for (delay, us_at, adaptive_at) in [
        (wanted.receive, RECEIVE_US_AT, ADAPTIVE_RECEIVE_AT),
        (wanted.transmit, TRANSMIT_US_AT, ADAPTIVE_TRANSMIT_AT),
    ] {
        put_u32(settings, us_at, delay.us);
        put_u32(settings, adaptive_at, delay.is_adaptive.into());
    }
}

impl Ioctl {
    /// Moderation of the first `queue_count` queues one by one where the driver has it, else of the device.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn moderations(&self, queue_count: u16) -> Result<Moderations, Errno> {
        let (mut queues, at) = request(GET, Some(0..queue_count.min(QUEUE_COUNT_MAX)));
        if queue_count > 0 && self.exchange(&mut queues).is_ok() {
            return Ok(Moderations::Queues(queues[at..].chunks_exact(BYTES).map(read).collect()));
        }
        let (mut device, _) = request(GET, None);
        match self.exchange(&mut device) {
            Ok(()) => Ok(Moderations::Device(read(&device))),
            Err(errno) if is_unsupported(errno) => Ok(Moderations::None),
            Err(errno) => Err(errno),
        }
    }

    /// Sets the moderation of one queue, or of the device.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn set_moderation(&self, queue: Option<u16>, wanted: Moderation) -> Result<(), Errno> {
        let (mut settings, at) = request(GET, queue.map(|queue| queue..queue.saturating_add(1)));
        self.exchange(&mut settings)?;
        put_u32(&mut settings, if queue.is_some() { 4 } else { 0 }, SET);
        write(&mut settings[at..], wanted);
        self.exchange(&mut settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::tests::bytes_of;

    /// `ethtool --per-queue eth0 queue_mask 0x30 --coalesce adaptive-rx off rx-usecs 0`, ethtool 6.1, after an answer
    /// of 50 µs, adaptive, 64 packets for both queues.
    #[test]
    fn requests_are_what_ethtool_sends() {
        let head = |command: &str| format!("4b000000{command}30{}", "00".repeat(511));
        let (get, at) = request(GET, Some(4..6));
        assert_eq!(get[..at], bytes_of(&head("0e000000")));
        assert_eq!(get.len(), at + 2 * BYTES);

        let mut answer = vec![0; BYTES];
        for (field, value) in [(0, GET), (RECEIVE_US_AT, 50), (8, 64), (ADAPTIVE_RECEIVE_AT, 1)] {
            put_u32(&mut answer, field, value);
        }
        assert_eq!(read(&answer).receive, Delay { us: 50, is_adaptive: true });
        write(&mut answer, Moderation::default());
        assert_eq!(answer, bytes_of(&format!("0e0000000000000040000000{}", "00".repeat(80))));
    }

    #[test]
    fn a_device_without_moderation_says_so() {
        let ioctl = Ioctl::open("lo").unwrap();
        assert_eq!(ioctl.moderations(1), Ok(Moderations::None));
        assert!(ioctl.set_moderation(None, Moderation::default()).is_err());
    }
}
