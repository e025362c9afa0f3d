//! The form that all commands over TCP share. wire §5
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use wire::opcode::DataDirection;
use wire::sqe::{Fuse, Psdt, Sqe};
use wire::status::Status;

/// Checks the flags of a command that is not half of a pair. Reserved bits are not judged, nor is the use of a data
/// pointer where no data moves. wire §29
///
/// # Errors
/// The status to refuse it with.
pub(crate) fn check_form(sqe: &Sqe) -> Result<(), Status> {
    let needs_sgl = sqe.data_direction() != DataDirection::None;
    if sqe.flags.fuse() != Fuse::NONE || needs_sgl && sqe.flags.psdt() != Psdt::SGL {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wire::id::Nsid;
    use wire::opcode::AdminOpcode;
    use wire::property::Property;
    use wire::sqe::SqeFlags;

    use super::*;

    #[test]
    fn commands_are_neither_fused_nor_by_prp() {
        let with_flags = |bits, sqe| Sqe { flags: SqeFlags::from_bits(bits), ..sqe };
        let identify = Sqe::new(AdminOpcode::IDENTIFY.raw(), Nsid::NONE);
        for bits in [0x40, 0x7C] {
            assert_eq!(check_form(&with_flags(bits, identify)), Ok(()), "{bits:#x}: reserved bits");
        }
        for bits in [0x00, 0x80, 0xC0, 0x41, 0x42, 0x43] {
            assert!(check_form(&with_flags(bits, identify)).is_err(), "{bits:#x}");
        }
        for sqe in [Sqe::property_get(Property::VS), Sqe::keep_alive(), Sqe::flush(Nsid::new(1))] {
            assert_eq!(check_form(&with_flags(0, sqe)), Ok(()), "no data moves");
            assert!(check_form(&with_flags(1, sqe)).is_err(), "half of a pair");
        }
    }
}
