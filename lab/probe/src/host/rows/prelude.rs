//! Imports of every kind of fault.

pub(super) use peer::fake_target::Fault;
pub(super) use peer::finding::{Check, differs, holds};
pub(super) use peer::link::{Term, term, term_at};
pub(super) use peer::pdu::Draft;
pub(super) use peer::session::{Event, Session, Then};
pub(super) use wire::identify::Cns;
pub(super) use wire::log::{GetLogPage, Lid};
pub(super) use wire::opcode::{AdminOpcode, FabricsType, NvmOpcode};
pub(super) use wire::pdu::PduFlags;
pub(super) use wire::sgl::DataPointer;
pub(super) use wire::sqe::Sqe;
pub(super) use wire::status::Status;
pub(super) use zerocopy::IntoBytes;

pub(super) use super::case::{Case, Right, answer_log, at_io, case, length_of, to_read, to_write, with_page};
