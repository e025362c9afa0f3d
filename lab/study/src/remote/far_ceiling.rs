//! The far end of the plain-socket ceiling, as a study server runs it: a thread, with limits on the requests of a
//! study.

use std::net::SocketAddr;
use std::time::Duration;

use linux::randomness::Randomness;
use load::ceiling::CeilingSpec;
use load::ceiling::far_end::{FarAccount, FarEnd, KEY_BYTES};
use wire::text::to_hex;

use super::limits::{memory_is_free, within};
use super::protocol::StartCeiling;

/// Operations in flight.
const DEPTH_MAX: u32 = 1 << 20;

/// Time before the measurement.
const WARM_UP_MAX: Duration = Duration::from_secs(3600);

/// Time for the connections to come and the memory to be written.
const READY_TIME: Duration = Duration::from_secs(60);

/// A far end that runs.
#[derive(Debug)]
pub(super) struct FarCeiling(FarEnd);

impl FarCeiling {
    /// Starts one on this core. Returns also its address and the key of its connections, as the study gets them.
    ///
    /// # Errors
    /// It asks for more than a study may have, or cannot listen: the reason, for the study.
    pub(super) fn start(
        start: &StartCeiling,
        listen: SocketAddr,
        core: Option<usize>,
        connection_count_max: u64,
    ) -> Result<(Self, (String, String)), String> {
        let spec = spec(start, core, connection_count_max)?;
        memory_is_free("the far end of a ceiling asks", spec.far_bytes())?;
        let mut key = [0; KEY_BYTES];
        Randomness::System.fill(&mut key).map_err(|error| format!("no random numbers: {error}"))?;
        let far = FarEnd::start(&spec, listen, key)
            .map_err(|error| format!("the far end of a ceiling cannot listen on {listen}: {error}"))?;
        let place = (far.address().to_string(), to_hex(&key));
        Ok((Self(far), place))
    }

    /// Waits until it is ready.
    pub(super) fn await_ready(&mut self) -> Result<(), String> {
        self.0.await_ready(READY_TIME).map_err(|error| failed(&error))
    }

    pub(super) fn end(self) -> Result<FarAccount, String> {
        self.0.end().map_err(|error| failed(&error))
    }
}

fn failed(error: &std::io::Error) -> String {
    format!("the far end of the ceiling: {error}")
}

/// The requested ceiling, if it is within the limits.
fn spec(start: &StartCeiling, core: Option<usize>, connection_count_max: u64) -> Result<CeilingSpec, String> {
    let StartCeiling { depth, connections, io_bytes, memory_bytes, far_memory_bytes, tls, warm_up, sleeps } =
        *start;
    within("connections of a ceiling", connections.into(), connection_count_max)?;
    within("operations in flight of a ceiling", depth.into(), DEPTH_MAX.into())?;
    within("bytes of an operation of a ceiling", io_bytes.into(), u32::MAX.into())?;
    if warm_up > WARM_UP_MAX {
        return Err(format!("a ceiling begins to measure after {} s at most", WARM_UP_MAX.as_secs()));
    }
    let in_memory = |bytes: u64| usize::try_from(bytes).map_err(|_| format!("{bytes} bytes of memory"));
    Ok(CeilingSpec {
        depth,
        connections,
        io_bytes,
        // Of the near end only.
        read_percent: 100,
        in_capsule_bytes: 0,
        near_receives: host::Receive::default(),
        duration: Duration::ZERO,
        seed: 1,
        memory_bytes: in_memory(memory_bytes)?,
        far_memory_bytes: in_memory(far_memory_bytes)?,
        tls: tls.map(Into::into),
        warm_up,
        cores: core.map(|core| (core, core)),
        far_sleeps: sleeps,
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const USUAL: StartCeiling = StartCeiling {
        depth: 32,
        connections: 1,
        io_bytes: 4096,
        memory_bytes: 0,
        far_memory_bytes: 0,
        tls: None,
        warm_up: Duration::from_millis(1),
        sleeps: false,
    };

    fn refused(start: &StartCeiling) -> String {
        FarCeiling::start(start, (Ipv4Addr::LOCALHOST, 0).into(), None, 1000).unwrap_err()
    }

    #[test]
    fn what_a_study_may_not_have_is_refused_before_anything_is_allocated() {
        for start in [
            StartCeiling { connections: 0, ..USUAL },
            StartCeiling { connections: 1001, ..USUAL },
            StartCeiling { depth: 0, ..USUAL },
            StartCeiling { depth: u32::MAX, ..USUAL },
            StartCeiling { io_bytes: 0, ..USUAL },
            StartCeiling { warm_up: Duration::MAX, ..USUAL },
        ] {
            assert!(refused(&start).contains("a ceiling"), "{start:?}");
        }
        for start in [
            StartCeiling { far_memory_bytes: 1 << 60, ..USUAL },
            StartCeiling { memory_bytes: 1 << 60, connections: 1000, ..USUAL },
            StartCeiling { memory_bytes: 1, connections: 1000, io_bytes: u32::MAX, ..USUAL },
        ] {
            assert!(refused(&start).contains("MiB are free"), "{start:?}");
        }
    }

    #[test]
    fn a_far_end_listens_and_ends() {
        let place = (Ipv4Addr::LOCALHOST, 0).into();
        let (far, (address, key)) = FarCeiling::start(&USUAL, place, None, 1000).unwrap();
        assert!(address.starts_with("127.0.0.1:") && key.len() == 2 * KEY_BYTES);
        assert!(far.end().unwrap_err().starts_with("the far end of the ceiling: "));
    }
}
