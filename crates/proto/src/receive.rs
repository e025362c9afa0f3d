//! How a lane asks its socket for bytes. docs/design/socket-path.md

use std::fmt;
use std::str::FromStr;

/// So much of one payload is received at once, bytes: other lanes have their turn before the rest.
pub const PLACED_BYTES_MAX: usize = 512 << 10;

/// How received bytes are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receive {
    /// All that there is, in one call, into a buffer that stays warm.
    #[default]
    Staging,
    /// PDU by PDU: 8 bytes, the rest of the header, then the data, into its own buffer if it has one. Only for measuring
    /// what the other mode gains.
    Pdu,
}

/// No such way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to receive: write staging or pdu")]
pub struct UnknownReceive(String);

impl FromStr for Receive {
    type Err = UnknownReceive;

    fn from_str(text: &str) -> Result<Self, UnknownReceive> {
        match text {
            "staging" => Ok(Self::Staging),
            "pdu" => Ok(Self::Pdu),
            _ => Err(UnknownReceive(text.to_owned())),
        }
    }
}

impl fmt::Display for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staging => "staging",
            Self::Pdu => "pdu",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for receive in [Receive::Staging, Receive::Pdu] {
            assert_eq!(receive.to_string().parse(), Ok(receive));
        }
        assert!("PDU".parse::<Receive>().is_err());
    }
}
