//! Random bytes: of the system, or the same for each run of a simulation.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::random::SplitMix64;

/// A source of random bytes.
#[derive(Clone, Debug)]
pub enum Randomness {
    /// The system's generator: fit for secrets.
    System,
    /// A simulation's: the same bytes for the same seed.
    Simulated(SplitMix64),
}

impl Randomness {
    /// Fills a buffer.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::System => {
                let mut filled = 0;
                while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                    match getrandom(rest, GetRandomFlags::empty()) {
                        Ok(count) => filled += count,
                        Err(rustix::io::Errno::INTR) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
            Self::Simulated(random) => {
                for chunk in buffer.chunks_mut(8) {
                    chunk.copy_from_slice(&random.draw().to_le_bytes()[..chunk.len()]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_bytes_differ_and_a_simulation_s_repeat() {
        let draw = |mut randomness: Randomness| {
            let mut bytes = [0; 61];
            randomness.fill(&mut bytes).expect("random bytes");
            bytes
        };
        assert_ne!(draw(Randomness::System), draw(Randomness::System));
        let simulated = || Randomness::Simulated(SplitMix64::new(7));
        assert_eq!(draw(simulated()), draw(simulated()));
        assert_ne!(draw(simulated())[..8], draw(simulated())[8..16]);
    }
}
