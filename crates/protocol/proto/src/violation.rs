//! Violations of the transport protocol, after which a lane ends, with a TermReq where one is due. wire §2.4

use wire::pdu::FatalErrorStatus;

/// The peer broke the transport protocol: the lane ends with a TermReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A field of a PDU header has an invalid value.
    #[error("invalid PDU header field at byte {offset}")]
    HeaderField {
        /// Offset of the field, bytes from the start of the PDU.
        offset: u8,
    },
    /// A PDU out of sequence: before the handshake, for a command without such data, or one command too many.
    #[error("PDU out of sequence")]
    Sequence,
    /// The header does not match its digest.
    #[error("header digest {received:#010x} does not match")]
    HeaderDigest {
        /// The digest received.
        received: u32,
    },
    /// Data outside its window or buffer, or out of order.
    #[error("data out of range")]
    OutOfRange,
    /// More data in one PDU, or more R2Ts at once, than agreed.
    #[error("data transfer limit exceeded")]
    LimitExceeded,
    /// A parameter that we cannot serve.
    #[error("unsupported parameter at byte {offset}")]
    UnsupportedParameter {
        /// Offset of the parameter, bytes from the start of the PDU.
        offset: u8,
    },
    /// The peer has given up the connection with a TermReq of its own, which is never answered.
    #[error("peer ended the connection: {fes}, information {fei:#x}")]
    EndedByPeer {
        /// Its fatal error status.
        fes: FatalErrorStatus,
        /// Its fatal error information.
        fei: u32,
    },
    /// A TermReq that is malformed itself.
    #[error("malformed TermReq")]
    MalformedTermReq,
}

impl Violation {
    /// Status and information of our TermReq; `None` if none may be sent.
    #[must_use]
    pub fn term_req(self) -> Option<(FatalErrorStatus, u32)> {
        match self {
            Self::HeaderField { offset } => Some((FatalErrorStatus::INVALID_HEADER_FIELD, offset.into())),
            Self::Sequence => Some((FatalErrorStatus::SEQUENCE_ERROR, 0)),
            Self::HeaderDigest { received } => Some((FatalErrorStatus::HEADER_DIGEST_ERROR, received)),
            Self::OutOfRange => Some((FatalErrorStatus::DATA_OUT_OF_RANGE, 0)),
            Self::LimitExceeded => Some((FatalErrorStatus::LIMIT_EXCEEDED, 0)),
            Self::UnsupportedParameter { offset } => {
                Some((FatalErrorStatus::UNSUPPORTED_PARAMETER, offset.into()))
            }
            Self::EndedByPeer { .. } | Self::MalformedTermReq => None,
        }
    }

    /// A short name for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HeaderField { .. } => "header_field",
            Self::Sequence => "sequence",
            Self::HeaderDigest { .. } => "header_digest",
            Self::OutOfRange => "out_of_range",
            Self::LimitExceeded => "limit_exceeded",
            Self::UnsupportedParameter { .. } => "unsupported_parameter",
            Self::EndedByPeer { .. } => "ended_by_peer",
            Self::MalformedTermReq => "malformed_term_req",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wire §2.4: text, counter and TermReq of each violation.
    #[test]
    fn every_violation_has_its_text_name_and_fatal_error_status() {
        let fes = FatalErrorStatus::SEQUENCE_ERROR;
        let violations = [
            Violation::HeaderField { offset: 4 },
            Violation::Sequence,
            Violation::HeaderDigest { received: 0xAA },
            Violation::OutOfRange,
            Violation::LimitExceeded,
            Violation::UnsupportedParameter { offset: 11 },
            Violation::EndedByPeer { fes, fei: 7 },
            Violation::MalformedTermReq,
        ];
        let rows = violations.map(|violation| {
            let answer = violation.term_req().map(|(fes, fei)| (fes.raw(), fei));
            format!("{}: {violation}; {answer:?}", violation.name())
        });
        insta::assert_snapshot!(rows.join("\n"), @r"
        header_field: invalid PDU header field at byte 4; Some((1, 4))
        sequence: PDU out of sequence; Some((2, 0))
        header_digest: header digest 0x000000aa does not match; Some((3, 170))
        out_of_range: data out of range; Some((4, 0))
        limit_exceeded: data transfer limit exceeded; Some((5, 0))
        unsupported_parameter: unsupported parameter at byte 11; Some((6, 11))
        ended_by_peer: peer ended the connection: PDU sequence error, information 0x7; None
        malformed_term_req: malformed TermReq; None
        ");
    }
}
