//! The handshake: ICReq, ICResp, and the agreement of both ends. wire §2.2, §2.3

use wire::pdu::{DataAlignment, Digests, IcReq, IcResp};

use crate::violation::Violation;

/// The least a controller may offer for one H2CData, bytes. wire §2.3
pub const H2C_DATA_BYTES_MIN: u32 = 4096;

/// The parameters of a connection from ICResp on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Digests that every PDU carries.
    pub digests: Digests,
    /// Alignment of data in PDUs to the controller (cpda).
    pub to_controller: DataAlignment,
    /// Alignment of data in PDUs to the host (hpda).
    pub to_host: DataAlignment,
    /// R2Ts per command that may be open at once, at least 1.
    pub r2t_limit: u32,
    /// Most data bytes in one H2CData.
    pub h2c_data_bytes_max: u32,
}

impl Agreement {
    /// The parameters before the handshake.
    pub const NONE: Self = Self {
        digests: Digests::empty(),
        to_controller: DataAlignment::NONE,
        to_host: DataAlignment::NONE,
        r2t_limit: 1,
        h2c_data_bytes_max: H2C_DATA_BYTES_MIN,
    };
}

/// The offer of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerOffer {
    /// Alignment asked of the host. Linux accepts none but 4 bytes.
    pub alignment: DataAlignment,
    /// Most data bytes taken in one H2CData; made a dword multiple of at least [`H2C_DATA_BYTES_MIN`].
    pub h2c_data_bytes_max: u32,
    /// R2Ts per command we open at once, if the host takes as many.
    pub r2t_limit: u32,
}

impl Default for ControllerOffer {
    fn default() -> Self {
        Self { alignment: DataAlignment::NONE, h2c_data_bytes_max: 1 << 20, r2t_limit: 1 }
    }
}

impl ControllerOffer {
    /// Answers a host: always with exactly the digests it asked for, since Linux takes nothing else. wire §2.3
    ///
    /// # Errors
    /// [`Violation::UnsupportedParameter`] for another format version,
    /// [`Violation::HeaderField`] for an impossible alignment.
    pub fn on_ic_req(&self, request: &IcReq) -> Result<(IcResp, Agreement), Violation> {
        if request.pfv.get() != 0 {
            return Err(Violation::UnsupportedParameter { offset: 8 });
        }
        let to_host = request.data_alignment().ok_or(Violation::HeaderField { offset: 10 })?;
        // Reserved digest bits are ignored: they ask for nothing we know.
        let digests = request.dgst & Digests::all();
        let h2c_data_bytes_max = self.h2c_data_bytes_max.max(H2C_DATA_BYTES_MIN) & !3;
        let agreement = Agreement {
            digests,
            to_controller: self.alignment,
            to_host,
            r2t_limit: u32::try_from(request.r2t_limit()).unwrap_or(u32::MAX).min(self.r2t_limit.max(1)),
            h2c_data_bytes_max,
        };
        Ok((IcResp::new(self.alignment, digests, h2c_data_bytes_max), agreement))
    }
}

/// The offer of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOffer {
    /// Alignment asked of the controller. nvmet accepts none but 4 bytes.
    pub alignment: DataAlignment,
    /// Digests asked for.
    pub digests: Digests,
    /// R2Ts per command we serve at once. nvmet and SPDK open one.
    pub r2t_limit: u32,
}

impl Default for HostOffer {
    fn default() -> Self {
        Self { alignment: DataAlignment::NONE, digests: Digests::empty(), r2t_limit: 1 }
    }
}

impl HostOffer {
    /// The request to send.
    #[must_use]
    pub fn ic_req(&self) -> IcReq {
        IcReq::new(self.alignment, self.digests, self.r2t_limit)
    }

    /// Checks a controller's answer.
    ///
    /// # Errors
    /// [`Violation::UnsupportedParameter`] for another format version or for digests we did not ask for or were
    /// refused, [`Violation::HeaderField`] for an impossible alignment or limit.
    pub fn on_ic_resp(&self, response: &IcResp) -> Result<Agreement, Violation> {
        if response.pfv.get() != 0 {
            return Err(Violation::UnsupportedParameter { offset: 8 });
        }
        let to_controller = response.data_alignment().ok_or(Violation::HeaderField { offset: 10 })?;
        // Reserved bits are not judged, as in ICReq.
        if response.dgst & Digests::all() != self.digests {
            return Err(Violation::UnsupportedParameter { offset: 11 });
        }
        let h2c_data_bytes_max = response.maxh2cdata.get();
        if h2c_data_bytes_max < H2C_DATA_BYTES_MIN || !h2c_data_bytes_max.is_multiple_of(4) {
            return Err(Violation::HeaderField { offset: 12 });
        }
        Ok(Agreement {
            digests: self.digests,
            to_controller,
            to_host: self.alignment,
            r2t_limit: self.r2t_limit.max(1),
            h2c_data_bytes_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, IntoBytes};

    fn with_byte<T: IntoBytes + FromBytes + zerocopy::Immutable>(value: &T, at: usize, byte: u8) -> T {
        let mut bytes = value.as_bytes().to_vec();
        bytes[at] = byte;
        T::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn digests_are_echoed_exactly() {
        for bits in 0..4 {
            let host = HostOffer { digests: Digests::from_bits_retain(bits), ..HostOffer::default() };
            let (response, ours) = ControllerOffer::default().on_ic_req(&host.ic_req()).unwrap();
            let theirs = host.on_ic_resp(&response).unwrap();
            assert_eq!(ours, theirs);
            assert_eq!(ours.digests.bits(), bits);
        }
    }

    #[test]
    fn a_host_may_allow_any_number_of_r2ts() {
        for (raw, ours, agreed) in [(0, 4, 1), (u32::MAX, 4, 4), (1, 4, 2), (7, 0, 1)] {
            let mut request = HostOffer::default().ic_req();
            request.maxr2t = raw.into();
            let offer = ControllerOffer { r2t_limit: ours, ..ControllerOffer::default() };
            assert_eq!(offer.on_ic_req(&request).unwrap().1.r2t_limit, agreed);
        }
    }

    #[test]
    fn impossible_requests_name_the_field() {
        let offer = ControllerOffer::default();
        let request = HostOffer::default().ic_req();
        let refused = |at, byte| offer.on_ic_req(&with_byte(&request, at, byte)).unwrap_err();
        assert_eq!(refused(8, 1), Violation::UnsupportedParameter { offset: 8 });
        assert_eq!(refused(9, 1), Violation::UnsupportedParameter { offset: 8 });
        assert_eq!(refused(10, 32), Violation::HeaderField { offset: 10 });
        let (response, agreement) = offer.on_ic_req(&with_byte(&request, 11, 0xfc)).unwrap();
        assert_eq!((response.dgst.bits(), agreement.digests), (0, Digests::empty()));
    }

    #[test]
    fn impossible_answers_fail_the_connect() {
        let host = HostOffer { digests: Digests::HEADER, ..HostOffer::default() };
        let (response, _) = ControllerOffer::default().on_ic_req(&host.ic_req()).unwrap();
        let refused = |at, byte| host.on_ic_resp(&with_byte(&response, at, byte)).unwrap_err();
        assert_eq!(refused(8, 1), Violation::UnsupportedParameter { offset: 8 });
        assert_eq!(refused(10, 32), Violation::HeaderField { offset: 10 });
        for digests in [0, 2, 3, 0xFE] {
            assert_eq!(refused(11, digests), Violation::UnsupportedParameter { offset: 11 });
        }
        assert!(host.on_ic_resp(&with_byte(&response, 11, 0xFD)).is_ok(), "reserved bits are not judged");
        // 1 MiB becomes 1 MiB + 2, or 0.
        assert_eq!(refused(12, 2), Violation::HeaderField { offset: 12 });
        assert_eq!(refused(14, 0), Violation::HeaderField { offset: 12 });
    }
}
